-- A token bucket configured by a hash, for gateways that talk to Redis themselves; its SHA1 is published under
-- lua:sha1:token_bucket.
--
-- KEYS[1]  a hash that the operator writes: bucket_cap, and rate (per second) or period (seconds in which an empty
--          bucket fills; a rate takes precedence). The count is stored beside them: if the key expires or is deleted,
--          the count is gone, too.
-- ARGV     N, and optionally the caller's time: the server's own clock decides
-- returns  1 if the permits were available and are taken, 0 if not, -1 if the key is not configured. N = 0 checks
--          whether one is available, and takes none. Changed numbers in the hash apply from the next call on, and hand
--          out nothing: a bucket with three permits keeps three.
-- A bad N, a bad number in the hash, a key that is missing or holds something else returns an error with a sentence,
-- and has written nothing.
--
-- The assembler inserts `model` and `storage` above.
local call, key = redis.call, KEYS[1]

local function refuse(sentence) return redis.error_reply("ERR headgate: " .. sentence) end

local cost = model.whole(ARGV[1])
if not cost then
  return refuse("a call takes a whole number of permits, such as 1, not '" .. (ARGV[1] or "") .. "'. It took none.")
end
local hash, read_error = storage.read(key, "bucket_cap", "rate", "period", "hg2", "curr_permits", "last_time")
if not hash then return read_error end
if not hash[1] then return -1 end
local limit, invalid = model.bucket(hash[1], hash[2], hash[3])
if invalid == "burst" then
  return refuse("bucket_cap must be a whole number of at least 1, not '" .. hash[1] .. "'.")
elseif invalid == "rate" then
  return refuse("rate must be a number of permits per second above 0, such as 10 or 0.5, not '" .. hash[2] .. "'.")
elseif invalid == "period" then
  return refuse("without a rate, period must be a whole number of seconds, not '" .. (hash[3] or "") .. "'.")
elseif invalid then
  return refuse("a bucket of " .. hash[1] .. " at this rate cannot be exact: it must fill within 100 years, and "
    .. "bucket_cap times the rate's digits be at most 2^53. Round the rate, or lower bucket_cap.")
end
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local before
before, read_error = storage.load(key, hash[4], limit, now_us, { hash[5], hash[6] })
if read_error then return read_error end
local verdict, after = model.decide(limit, before, now_us, cost, -1)
if after ~= before then storage.save(key, limit, after, now_us) end
return verdict[1]
