-- gcra.lua for many keys in one call: one TIME and one MGET for them all. Every key must be asked once only.
--
-- KEYS     the counts         ARGV  microseconds per unit, microseconds of burst
-- returns  for each key the microseconds until it is as if never used; if refused, below zero
local call, ceil = redis.call, math.ceil
local time = call('TIME')
local now, unit, burst = time[1] * 1000000 + time[2], ARGV[1] + 0, ARGV[2] + 0
local answer = call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local dry = tonumber(answer[i]) or now
  if dry < now then dry = now end
  local after = dry + unit - now
  if after > burst then
    answer[i] = now - dry - 1
  else
    call('SET', key, now + after, 'PX', ceil(after / 1000))
    answer[i] = after
  end
end
return answer
