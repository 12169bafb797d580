-- A token bucket configured by a hash, for gateways that talk to Redis themselves; its SHA1 is published under
-- lua:sha1:token_bucket.
--
-- KEYS[1]  a hash that the operator writes: bucket_cap, and rate (per second) or period (seconds in which an empty
--          bucket fills; a rate counts before it). The count is kept beside them, and whoever lets the key expire or
--          deletes it takes the count along.
-- ARGV     N, and the caller's time if it likes: the server's own clock decides
-- returns  1 if the permits were there and are taken, 0 if not, -1 if the key is not configured. N = 0 asks whether
--          one could be had, and takes none. Other numbers in the hash count from the next call on, and hand out
--          nothing: who held three permits holds three.
-- A bad N, a bad number in the hash, a key that is missing or holds something else is answered with an error, a
-- sentence, and then nothing was written.
--
-- `model` and `keep` are put above this line by the assembler.
local call, key = redis.call, KEYS[1]

local function refuse(sentence) return redis.error_reply("ERR headgate: " .. sentence) end

local cost = model.whole(ARGV[1])
if not cost then
  return refuse("a call takes a whole number of permits, such as 1, not '" .. (ARGV[1] or "") .. "'. It took none.")
end
local hash, wrong = keep.read(key, "bucket_cap", "rate", "period", "hg2", "curr_permits", "last_time")
if not hash then return wrong end
if not hash[1] then return -1 end
local limit, trouble = model.bucket(hash[1], hash[2], hash[3])
if trouble == "burst" then
  return refuse("bucket_cap must be a whole number of at least 1, not '" .. hash[1] .. "'.")
elseif trouble == "rate" then
  return refuse("rate must be a number of permits per second above 0, such as 10 or 0.5, not '" .. hash[2] .. "'.")
elseif trouble == "period" then
  return refuse("without a rate, period must be a whole number of seconds, not '" .. (hash[3] or "") .. "'.")
elseif trouble then
  return refuse("a bucket of " .. hash[1] .. " at this rate cannot be exact: it must fill within 100 years, and "
    .. "bucket_cap times the rate's digits be at most 2^53. Round the rate, or lower bucket_cap.")
end
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local before
before, wrong = keep.load(key, hash[4], limit, now_us, { hash[5], hash[6] })
if wrong then return wrong end
local verdict, after = model.decide(limit, before, now_us, cost, -1)
if after ~= before then keep.save(key, limit, after, now_us) end
return verdict[1]
