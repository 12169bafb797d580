-- The least that a rate limit in Redis can be: GCRA in whole microseconds, one string, one TIME, one GET, one SET.
-- No remainder, no peek, no cost, no reservation, no clock that steps back, no refund.
--
-- KEYS[1]  the count          ARGV  microseconds per unit, microseconds of burst
-- returns  allowed, remaining, retry_after_us, reset_after_us
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local unit = tonumber(ARGV[1])
local burst = tonumber(ARGV[2])
local dry = tonumber(redis.call('GET', KEYS[1])) or now
if dry < now then dry = now end
local after = dry + unit - now
if after > burst then return {0, 0, after - burst, dry - now} end
redis.call('SET', KEYS[1], now + after, 'PX', math.ceil(after / 1000))
return {1, math.floor((burst - after) / unit), 0, after}
