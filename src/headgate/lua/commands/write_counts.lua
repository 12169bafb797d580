-- Adds counts of one process to those of all: each write once, even if it is sent twice.
--
-- KEYS     [1] the writer's hash: seq, name, at_s of its last write
--          [2] a sorted set of rules, by the second of their last write
--          [3] a sorted set of writers, likewise
--          [4] ... what is added to
-- ARGV     [1] the write's number, [2] the time in epoch seconds, [3] the writer's name, [4] how many rules there may
--          be, [5] how long the indexes remember a rule and a writer, in seconds; then for each rule:
--            its name, how many parts follow; and for each part:
--              the index of its key, its ttl in seconds, its type, how many arguments follow, and these:
--                h  a hash: field, number, ...             each is added to the field
--                p  a HyperLogLog: element, ...            each is added
--                z  a sorted set: member, number, ...      each is added to the member's score; the 200 highest stay
-- returns  how many rules were left out, because there are too many; or -1 if this write was done before
--
-- Every key expires.
local call, argv = redis.call, ARGV
if tonumber(call("HGET", KEYS[1], "seq") or 0) >= tonumber(argv[1]) then return -1 end
local now, remembered = tonumber(argv[2]), tonumber(argv[5])

local function add(key, kind, first, last)
  if kind == "p" then
    for from = first, last, 500 do
      call("PFADD", key, unpack(argv, from, math.min(from + 499, last)))
    end
    return
  end
  local verb = kind == "h" and "HINCRBY" or "ZINCRBY"
  for at = first, last, 2 do
    if kind == "h" then
      call(verb, key, argv[at], argv[at + 1])
    else
      call(verb, key, argv[at + 1], argv[at])
    end
  end
  if kind == "z" then call("ZREMRANGEBYRANK", key, 0, -201) end
end

local at, rules, left_out = 6, call("ZCARD", KEYS[2]), 0
while argv[at] do
  local rule, parts = argv[at], tonumber(argv[at + 1])
  local last_write = call("ZSCORE", KEYS[2], rule)
  local counted = last_write or rules < tonumber(argv[4])
  if counted then
    call("ZADD", KEYS[2], now, rule)
    rules = last_write and rules or rules + 1
  else
    left_out = left_out + 1
  end
  at = at + 2
  for _ = 1, parts do
    local key, last = KEYS[tonumber(argv[at])], at + 3 + tonumber(argv[at + 3])
    if counted then
      add(key, argv[at + 2], at + 4, last)
      call("EXPIRE", key, argv[at + 1])
    end
    at = last + 1
  end
end

call("HSET", KEYS[1], "seq", argv[1])
call("HSET", KEYS[1], "name", argv[3])
call("HSET", KEYS[1], "at_s", argv[2])
call("EXPIRE", KEYS[1], remembered)
call("ZADD", KEYS[3], now, string.match(KEYS[1], "[^:]*$"))
for index = 2, 3 do
  call("ZREMRANGEBYSCORE", KEYS[index], "-inf", now - remembered)
  call("EXPIRE", KEYS[index], remembered)
end
return left_out
