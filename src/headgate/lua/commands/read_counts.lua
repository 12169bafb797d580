-- Reads counts of several keys at once.
--
-- KEYS     the keys
-- ARGV     for each key its type: h, a hash, or the number of members with the highest scores of a sorted set
-- returns  for each key: field, value, ...; or member, score, ...
local replies = {}
for index, key in ipairs(KEYS) do
  if ARGV[index] == "h" then
    replies[index] = redis.call("HGETALL", key)
  else
    replies[index] = redis.call("ZREVRANGE", key, 0, ARGV[index] - 1, "WITHSCORES")
  end
end
return replies
