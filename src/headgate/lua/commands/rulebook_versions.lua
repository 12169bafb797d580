-- Publishes a version of the rulebook: it gets the next number and the server's time, and never changes.
--
-- KEYS[1]  a hash, <prefix>2:rules, which holds everything:
--            version   the number of the current version
--            at_us     when it was published
--            <n>       version n, as JSON: version and at_us, then the fields of the draft
-- ARGV     expected (the version that the writer has seen, or "" for any), how many versions to keep, the draft:
--          a JSON object with at least one field, neither version nor at_us among them
-- returns  1, version, at_us; or 0, version if that is not the expected one; or the error of wrong_value.lua, also
--          where a hash has no version: then it is not ours
--
-- A number is never given twice while the hash lives, even if somebody has set `version` back by hand.
local call, key, draft = redis.call, KEYS[1], ARGV[3]
local version = redis.pcall("HGET", key, "version")
if version and version.err then return wrong_value(key, version) end
local fields = call("HKEYS", key)
if not version and fields[1] then return wrong_value(key) end
version = tonumber(version or 0) or 0
if ARGV[1] ~= "" and tonumber(ARGV[1]) ~= version then
  return { 0, version }
end
local latest = version
for _, field in ipairs(fields) do
  latest = math.max(latest, tonumber(field) or 0)
end
local time = call("TIME")
local at_us = time[1] * 1000000 + time[2]
local new, at = string.format("%.0f", latest + 1), string.format("%.0f", at_us)

call("HSET", key, new, '{"version":' .. new .. ',"at_us":' .. at .. "," .. string.sub(draft, 2))
call("HSET", key, "version", new)
call("HSET", key, "at_us", at)
for _, field in ipairs(fields) do
  if (tonumber(field) or latest + 1) <= latest + 1 - ARGV[2] then
    call("HDEL", key, field)
  end
end
return { 1, latest + 1, at_us }
