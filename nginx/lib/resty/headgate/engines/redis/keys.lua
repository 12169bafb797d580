-- Builds the Redis key of a count. The twin of engines/redis/keys.py.
--
--   hg2:<algorithm>:<name>:{<key>}
--
-- Characters that could be mistaken for a separator are written %XX, and a key longer than 200 bytes is %# and its
-- SHA-256, which no escaped key can look like. The caller passes the function that computes the checksum, in hex.
--
-- Law: different names and keys never collide.

local strings = require "resty.headgate.text.strings"

local M = {}

local LAYOUT_VERSION, MAX_KEY_BYTES = 2, 200

local function escape(character) return string.format("%%%02X", string.byte(character)) end

-- Returns the abbreviation of an algorithm: of two words their first letters, of one word its first and last:
-- token_bucket is tb, slots is ss.
local function initials(algorithm)
  local first_word, second_word = strings.cut(algorithm, "_")
  return string.sub(first_word, 1, 1) .. (second_word and string.sub(second_word, 1, 1) or string.sub(first_word, -1))
end

-- Returns everything before the key itself.
function M.head(prefix, algorithm, name)
  local escaped_name = string.gsub(name, "[%c %%{}:]", escape)
  return string.format("%s%d:%s:%s:{", prefix, LAYOUT_VERSION, initials(algorithm), escaped_name)
end

-- Returns the whole Redis key.
function M.redis_key(head, key, sha256)
  if #key > MAX_KEY_BYTES then return head .. "%#" .. sha256(key) .. "}" end
  return head .. string.gsub(key, "[%c %%{}]", escape) .. "}"
end

-- Keys of the members, of the published rulebook, and of the texts of its scripts.
function M.members(prefix) return prefix .. LAYOUT_VERSION .. ":members" end
function M.rules(prefix) return prefix .. LAYOUT_VERSION .. ":rules" end
function M.scripts(prefix) return prefix .. LAYOUT_VERSION .. ":scripts" end

-- Returns everything before the suffix of a key of shared counts. The braces are their hash tag.
function M.counts_head(prefix) return prefix .. LAYOUT_VERSION .. ":{counts}:" end

-- Returns everything before the second of a key of recent records. The braces are their hash tag.
function M.recent_head(prefix) return prefix .. LAYOUT_VERSION .. ":{recent}:" end

-- Returns the key that is written to probe whether a server takes writes, in the slot of this hash tag.
function M.probe(prefix, tag) return prefix .. LAYOUT_VERSION .. ":probe:{" .. tag .. "}" end

-- Returns the pattern that all our keys match.
function M.pattern(prefix) return prefix .. LAYOUT_VERSION .. ":*" end

return M
