-- Recomputes a key under a changed limit, as of now.
--
-- KEYS[1]  the count
-- ARGV     the numbers of the limit
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local limit = model.limit(ARGV, 1)
local before, error_reply = storage.load(KEYS[1], limit, now_us)
if error_reply then return error_reply end
storage.save(KEYS[1], limit, model.retune(limit, before, now_us), now_us)
return 1
