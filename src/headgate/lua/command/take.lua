-- One charge on one key: judged, and saved if it passes.
--
-- KEYS[1]  the count
-- ARGV     cost, patience_us (-1 takes), then the limit's own numbers
-- returns  allowed (1|0), remaining, retry_after_us (-1 never), reset_after_us, delay_us, now_us, mark
--
-- `model` and `keep` are the algorithm's; the assembler puts them above this line.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local key, cost = KEYS[1], tonumber(ARGV[1])
local limit = model.limit(ARGV, 3)
local before = keep.load(key, limit)
local verdict, after = model.decide(limit, before, now_us, cost, tonumber(ARGV[2]))
if after ~= before then keep.save(key, limit, after, now_us) end
return verdict
