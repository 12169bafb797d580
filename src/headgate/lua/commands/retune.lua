-- Recomputes a key under a changed limit, as of now.
--
-- KEYS[1]  the count
-- KEYS[2]  its pause, if it can be paused
-- ARGV     the numbers of the limit
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local paused_us, state = 0, nil
if KEYS[2] then
  local error_reply
  state, error_reply = load_pause(KEYS[2], now_us)
  if error_reply then return error_reply end
  paused_us = pause.left_us(state, now_us)
  now_us = pause.clock_us(state, now_us, model.has_edges)
end
local limit = model.limit(ARGV, 1)
local before, error_reply = storage.load(KEYS[1], limit, now_us)
if error_reply then return error_reply end
storage.save(KEYS[1], limit, model.retune(limit, before, now_us), now_us - paused_us)
if state then outlive(KEYS[2], KEYS[1]) end
return 1
