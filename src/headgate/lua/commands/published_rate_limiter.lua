-- A rate limiter for gateways that talk to Redis themselves; its SHA1 is published under lua:sha1:rate_limiter.
--
-- KEYS[1]  a hash: max_permits, rate (permits per second), ttl (seconds) if one was given; the count is beside them
-- ARGV     acquire N                      1 if the permits were available and are taken, -1 if not, and -1 if the key
--                                         was never initialised. N = 0 checks whether one is available, and takes none.
--          init max_permits rate [ttl]    1. The bucket starts full. A repeated init changes nothing, and other numbers
--                                         hand out nothing: a bucket with three permits keeps three. With a ttl the key
--                                         expires when it was idle for so many seconds (and its bucket is full),
--                                         otherwise it lives until deleted.
--          delete                         1, also if there was nothing
-- Any other call returns an error with a sentence, and has written nothing.
--
-- The assembler inserts `model` and `storage` above.
local call, key, method = redis.call, KEYS[1], ARGV[1]
local MAX_TTL_S = 100 * 365 * 86400

local function refuse(sentence) return redis.error_reply("ERR headgate: " .. sentence) end

local function refuse_limit(invalid, max_permits, rate)
  if invalid == "burst" then
    return refuse("max_permits must be a whole number of at least 1, not '" .. (max_permits or "") .. "'.")
  elseif invalid == "exact" then
    return refuse(max_permits .. " permits at " .. rate .. " per second cannot be exact: a bucket must fill within 100 "
      .. "years, and max_permits times the rate's digits be at most 2^53. Round the rate, or lower max_permits.")
  end
  return refuse("rate must be a number of permits per second above 0, such as 10 or 0.5, not '" .. (rate or "") .. "'.")
end

local function refuse_ttl(ttl)
  return refuse("ttl must be a whole number of seconds from 1 to 100 years, not '" .. ttl .. "'.")
end

-- Parses a ttl in seconds; nil if it is none.
local function parse_ttl(text)
  local ttl = model.whole(text)
  return ttl and ttl >= 1 and ttl <= MAX_TTL_S and ttl or nil
end

-- Lets the key expire after `ttl` idle seconds, but not before its bucket is full.
local function expire_when_idle(limit, state, ttl, now_us)
  call("PEXPIRE", key, math.max(ttl * 1000, state and model.ttl_ms(limit, state, now_us) or 0))
end

local function acquire()
  local cost = model.whole(ARGV[2])
  if not cost then
    return refuse("acquire takes a whole number of permits, such as 1, not '" .. (ARGV[2] or "") .. "'. It took none.")
  end
  local hash, read_error = storage.read(key, "max_permits", "rate", "ttl", "hg2", "curr_permits", "last_mill_second")
  if not hash then return read_error end
  if not hash[1] then return -1 end
  local limit, invalid = model.bucket(hash[1], hash[2] or "")
  if not limit then return refuse_limit(invalid, hash[1], hash[2]) end
  local ttl = parse_ttl(hash[3])
  if hash[3] and not ttl then return refuse_ttl(hash[3]) end
  local time = call("TIME")
  local now_us = time[1] * 1000000 + time[2]
  local before
  before, read_error = storage.load(key, hash[4], limit, now_us, { hash[5], hash[6] })
  if read_error then return read_error end
  local verdict, after = model.decide(limit, before, now_us, cost, -1)
  if after ~= before then
    storage.save(key, limit, after, now_us)
    if hash[3] then expire_when_idle(limit, after, ttl, now_us) end
  end
  return verdict[1] == 1 and 1 or -1
end

local function init()
  local limit, invalid = model.bucket(ARGV[2], ARGV[3] or "")
  if not limit then return refuse_limit(invalid, ARGV[2], ARGV[3]) end
  local ttl = parse_ttl(ARGV[4])
  if ARGV[4] and not ttl then return refuse_ttl(ARGV[4]) end
  local hash, read_error = storage.read(key, "hg2", "curr_permits", "last_mill_second")
  if not hash then return read_error end
  local time = call("TIME")
  local now_us = time[1] * 1000000 + time[2]
  local state
  state, read_error = storage.load(key, hash[1], limit, now_us, { hash[2], hash[3] }, now_us)
  if read_error then return read_error end
  call("HSET", key, "max_permits", ARGV[2], "rate", ARGV[3])
  if state then storage.save(key, limit, state, now_us) end
  if ttl then
    call("HSET", key, "ttl", ARGV[4])
    expire_when_idle(limit, state, ttl, now_us)
  else
    call("HDEL", key, "ttl")
    call("PERSIST", key)
  end
  return 1
end

if method == "acquire" then return acquire() end
if method == "init" then return init() end
if method == "delete" then
  local hash, read_error = storage.read(key, "hg2") -- Never deletes a key that is no hash.
  if not hash then return read_error end
  call("DEL", key)
  return 1
end
return refuse("unknown method '" .. (method or "") .. "': write acquire N, init max_permits rate [ttl], or delete.")
