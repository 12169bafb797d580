-- The ledger of grants: which part of a limit each holder may be using by itself.
--
-- KEYS[1]  a string, which holds everything of a key (docs/reference/storage.md)
-- ARGV     verb, holder (without spaces and line ends); then by the verb:
--            grant wants|"" live_us unknown_until_us least     notes what the holder wants, in grant units; "" if it
--                      cannot know. Returns the grant units that are its part until live_us from now, the server's time
--                      and the number of holders. -1 grant units: no grant yet, because the ledger still collects.
--            leave                                              the holder wants nothing more; returns 1
--
-- unknown_until_us counts only if there is no ledger: the caller has reported grants that may be in use until then, so
-- the ledger was lost. If it cannot be read, the error of wrong_value.lua is returned. `model` is the model of grants;
-- the assembler inserts it above.
local call, key, holder = redis.call, KEYS[1], ARGV[2]
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local text = redis.pcall("GET", key)
if text and text.err then return wrong_value(key, text) end

local function save(after, dead_us)
  if not after then return wrong_value(key, text) end
  local ttl_ms = math.ceil((dead_us - now_us) / 1000)
  if ttl_ms > 0 then call("SET", key, after, "PX", string.format("%.0f", ttl_ms)) else call("DEL", key) end
end

if ARGV[1] == "leave" then
  return save(model.remove_holder(text, now_us, holder)) or 1
end
local live_us, unknown_until_us, least = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local grant_units, after, dead_us, holders =
  model.report_demand(least, text, now_us, holder, tonumber(ARGV[3]), live_us, unknown_until_us)
return save(after, dead_us) or { grant_units, now_us, holders }
