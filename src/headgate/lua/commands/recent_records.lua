-- Stores a sample of the records of one second, from all processes; and reads the samples of several seconds.
--
-- KEYS     write: <prefix>2:{recent}:<second>:r, a list of records of refusals; :p, of calls that passed; :b, how many
--          bytes both have. read: any of these lists
-- ARGV     write: "write", the most records and bytes of a second, ttl in seconds, how many of the records that follow
--          are refusals (they come first), and the records. Returns how many were stored
--          read: "read". Returns the list of each key
--
-- A refusal that finds no room takes that of calls which passed.
local call = redis.call
if ARGV[1] == "read" then
  local lists = {}
  for i, key in ipairs(KEYS) do
    local list = redis.pcall("LRANGE", key, 0, -1)
    if list.err then return wrong_value(key, list) end
    lists[i] = list
  end
  return lists
end

local ENTRY_BYTES = 16 -- what Redis needs beside the record
local max_records, max_bytes, ttl_s, refusals = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local refused, passed = redis.pcall("LLEN", KEYS[1]), redis.pcall("LLEN", KEYS[2])
if type(refused) == "table" then return wrong_value(KEYS[1], refused) end
if type(passed) == "table" then return wrong_value(KEYS[2], passed) end
local bytes, stored = tonumber(redis.pcall("GET", KEYS[3]) or 0), 0
if not bytes then return wrong_value(KEYS[3]) end
for i = 6, #ARGV do
  local size, is_refusal = #ARGV[i] + ENTRY_BYTES, i < 6 + refusals
  while is_refusal and passed > 0 and (refused + passed >= max_records or bytes + size > max_bytes) do
    bytes, passed = bytes - #call("RPOP", KEYS[2]) - ENTRY_BYTES, passed - 1
  end
  if refused + passed < max_records and bytes + size <= max_bytes then
    call("RPUSH", KEYS[is_refusal and 1 or 2], ARGV[i])
    bytes, stored = bytes + size, stored + 1
    if is_refusal then refused = refused + 1 else passed = passed + 1 end
  end
end
call("SET", KEYS[3], string.format("%.0f", bytes), "EX", ttl_s)
call("EXPIRE", KEYS[1], ttl_s)
call("EXPIRE", KEYS[2], ttl_s)
return stored
