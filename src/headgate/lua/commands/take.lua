-- One charge on one key: judged, and saved if it passes.
--
-- KEYS[1]  the count
-- ARGV     the limit's own numbers, then cost and patience_us (-1 takes), left out where they are 1 and -1
-- returns  allowed (1|0), remaining, retry_after_us (-1 never), reset_after_us, delay_us, now_us, mark; or the error of
--          wrong_value.lua, as all commands do
--
-- `model` and `keep` are the algorithm's; the assembler puts them above this line.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local key, limit = KEYS[1], model.limit(ARGV, 1)
local cost, patience_us = (ARGV[model.width + 1] or 1) + 0, (ARGV[model.width + 2] or -1) + 0
local before, wrong = keep.load(key, limit, now_us)
if wrong then return wrong end
local verdict, after = model.decide(limit, before, now_us, cost, patience_us)
if after ~= before then keep.save(key, limit, after, now_us) end
return verdict
