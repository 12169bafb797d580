-- Decides one charge on one key, and saves it if it passes.
--
-- KEYS[1]  the count
-- ARGV     the numbers of the limit, then cost and patience_us (-1 takes), left out where they are 1 and -1
-- returns  allowed (1|0), remaining, retry_after_us (-1 never), reset_after_us, delay_us, now_us, mark; or the error of
--          wrong_value.lua, as all commands do
--
-- `model` and `storage` are the algorithm's; the assembler inserts them above.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local key, limit = KEYS[1], model.limit(ARGV, 1)
local cost, patience_us = (ARGV[model.width + 1] or 1) + 0, (ARGV[model.width + 2] or -1) + 0
local before, error_reply = storage.load(key, limit, now_us)
if error_reply then return error_reply end
local verdict, after = model.decide(limit, before, now_us, cost, patience_us)
if after ~= before then storage.save(key, limit, after, now_us) end
return verdict
