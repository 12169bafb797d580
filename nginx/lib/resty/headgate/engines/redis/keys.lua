-- The Redis key that a count is kept under. The twin of engines/redis/keys.py.
--
--   hg2:<algorithm>:<name>:{<key>}
--
-- Whatever could be mistaken for a separator is written %XX, and a key longer than 200 bytes is %# and its SHA-256,
-- which no escaped key can look like. Who calls hands in the function that makes the checksum, in hex.
--
-- Law: different names and keys never meet.

local split = require "resty.headgate.text.strings"

local M = {}

local LAYOUT, LONGEST = 2, 200

local function escape(character) return string.format("%%%02X", string.byte(character)) end

-- Of two words their first letters, of one word its first and last: token_bucket is tb, slots is ss.
local function initials(algorithm)
  local one, two = split.cut(algorithm, "_")
  return string.sub(one, 1, 1) .. (two and string.sub(two, 1, 1) or string.sub(one, -1))
end

-- Everything before the key itself.
function M.head(prefix, algorithm, name)
  local filed_under = string.gsub(name, "[%c %%{}:]", escape)
  return string.format("%s%d:%s:%s:{", prefix, LAYOUT, initials(algorithm), filed_under)
end

-- The whole Redis key.
function M.tagged(head, key, sha256)
  if #key > LONGEST then return head .. "%#" .. sha256(key) .. "}" end
  return head .. string.gsub(key, "[%c %%{}]", escape) .. "}"
end

-- Where the processes are counted, where the published rulebook lies, and where the texts of its scripts.
function M.members(prefix) return prefix .. LAYOUT .. ":members" end
function M.rules(prefix) return prefix .. LAYOUT .. ":rules" end
function M.scripts(prefix) return prefix .. LAYOUT .. ":scripts" end

-- The key that is written to see whether a server takes writes, in the slot of this hash tag.
function M.probe(prefix, tag) return prefix .. LAYOUT .. ":probe:{" .. tag .. "}" end

-- The pattern that all our keys match.
function M.pattern(prefix) return prefix .. LAYOUT .. ":*" end

return M
