-- Counts the live processes that share limits: each sends a heartbeat every second.
--
-- KEYS[1]  a sorted set, <prefix>2:members, which holds everything:
--            m<id>   when this member counts as dead, by the server's clock, in microseconds
--            r<id>   -id: its place among the others
--          Times are above zero and ids below, so live members are one range, and those with a lower id are another.
-- ARGV     verb, id (a whole number below 2^53), ttl_us
--            heartbeat   returns the number of live members, and how many of them have a lower id
--            leave       returns 1; or 0 if there was no such member
--          or the error of wrong_value.lua, also where an entry to be removed is no member
--
-- Every heartbeat removes dead members. A member that would live longer than a ttl from now was written before the
-- clock stepped back: it is removed as well, and returns with its next heartbeat.
local call, key, id = redis.call, KEYS[1], ARGV[2]
if ARGV[1] == "leave" then
  local removed = redis.pcall("ZREM", key, "m" .. id)
  if removed == 1 then call("ZREM", key, "r" .. id) end
  return type(removed) == "table" and wrong_value(key, removed) or removed
end
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local now_text = string.format("%.0f", now_us)
local expires = string.format("%.0f", now_us + ARGV[3])

local dead = redis.pcall("ZRANGEBYSCORE", key, "(0", now_text)
if dead.err then return wrong_value(key, dead) end
for _, member in ipairs(call("ZRANGEBYSCORE", key, "(" .. expires, "+inf")) do dead[#dead + 1] = member end
for _, member in ipairs(dead) do
  if not string.find(member, "^m%d+$") then return wrong_value(key) end
end
for _, member in ipairs(dead) do call("ZREM", key, member, "r" .. string.sub(member, 2)) end
call("ZADD", key, expires, "m" .. id, "-" .. id, "r" .. id)
call("PEXPIRE", key, string.format("%.0f", math.ceil(ARGV[3] / 1000)))
return { call("ZCOUNT", key, "(0", "+inf"), call("ZCOUNT", key, "(-" .. id, "(0") }
