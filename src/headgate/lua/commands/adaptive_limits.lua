-- Exchanges the adaptive limits of processes: stores those of one, and returns those of all that live.
--
-- KEYS[1]  a hash, <prefix>2:{adaptive}: by process, when its limits are dead by the server's clock, in microseconds,
--          a blank, and the limits
-- ARGV     process, ttl_us, limits, the most processes that are kept
--          returns the limits of each live process
--
-- Limits that would live longer than a ttl from now were written before the clock was set back: they are dead, too.
local call, key = redis.call, KEYS[1]
local time = call("TIME")
local now_us, ttl_us = time[1] * 1000000 + time[2], tonumber(ARGV[2])
local entries = redis.pcall("HGETALL", key)
if entries.err then return wrong_value(key, entries) end
local limits = { ARGV[3] }
for i = 1, #entries, 2 do
  local expires, text = string.match(entries[i + 1], "^(%d+) (.*)$")
  expires = tonumber(expires)
  if not expires then return wrong_value(key) end
  if entries[i] ~= ARGV[1] then
    if expires <= now_us or expires > now_us + ttl_us then
      call("HDEL", key, entries[i])
    else
      limits[#limits + 1] = text
    end
  end
end
if #limits <= tonumber(ARGV[4]) then
  call("HSET", key, ARGV[1], string.format("%.0f ", now_us + ttl_us) .. ARGV[3])
  call("PEXPIRE", key, string.format("%.0f", math.ceil(ttl_us / 1000)))
end
return limits
