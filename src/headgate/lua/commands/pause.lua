-- Pauses a key: beside its counts, which live that much longer.
--
-- KEYS     the pause; then the counts that it holds up
-- ARGV     for how many microseconds
-- returns  for how many microseconds the key is paused now: more, if a longer pause is under way
--
-- `load_pause` and `pause`, the model, are inserted above by the assembler.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local before, error_reply = load_pause(KEYS[1], now_us)
if error_reply then return error_reply end
local after = pause.extended(before, now_us, tonumber(ARGV[1]))
if after ~= before then
  local added_ms = math.ceil((after.lag_us - (before and before.lag_us or 0)) / 1000)
  local ttl_ms = math.max(math.ceil((after.until_us - now_us) / 1000), redis.call("PTTL", KEYS[1]) + added_ms) + 100
  for i = 2, #KEYS do
    local count_ttl_ms = redis.call("PTTL", KEYS[i])
    if count_ttl_ms >= 0 then
      redis.call("PEXPIRE", KEYS[i], count_ttl_ms + added_ms)
      ttl_ms = math.max(ttl_ms, count_ttl_ms + added_ms)
    end
  end
  redis.call("SET", KEYS[1], pause.pack(after), "PX", ttl_ms)
end
return after.until_us - now_us
