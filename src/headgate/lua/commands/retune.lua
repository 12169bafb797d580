-- Reckons a key anew under a changed limit, at this instant.
--
-- KEYS[1]  the count
-- ARGV     the limit's own numbers
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local limit = model.limit(ARGV, 1)
local before, wrong = keep.load(KEYS[1], limit, now_us)
if wrong then return wrong end
keep.save(KEYS[1], limit, model.retune(limit, before, now_us), now_us)
return 1
