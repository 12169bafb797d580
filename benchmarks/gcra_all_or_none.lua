-- gcra.lua for several counts, all or none: one TIME, and a GET and a SET for each.
--
-- KEYS     the counts         ARGV  microseconds per unit, microseconds of burst: the same for each
-- returns  for each: allowed, remaining, retry_after_us, reset_after_us; or of the first that refuses
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local unit = tonumber(ARGV[1])
local burst = tonumber(ARGV[2])
local afters, answer = {}, {}
for i = 1, #KEYS do
  local dry = tonumber(redis.call('GET', KEYS[i])) or now
  if dry < now then dry = now end
  local after = dry + unit - now
  if after > burst then return {{0, 0, after - burst, dry - now}} end
  afters[i] = after
  answer[i] = {1, math.floor((burst - after) / unit), 0, after}
end
for i = 1, #KEYS do redis.call('SET', KEYS[i], now + afters[i], 'PX', math.ceil(afters[i] / 1000)) end
return answer
