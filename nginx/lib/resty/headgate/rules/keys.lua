-- Keys: the text that a call is counted under. The twin of rules/keys.py.
--
--   user=ada|address=203.0.113.0/24
--
-- In a value % is written %25, | is %7C, and a byte that is not UTF-8 is %XX. Without dimensions the key is `all`. An
-- address is counted by its network: IPv4 whole and IPv6 by /64, unless the dimension says otherwise.
--
-- Laws: two calls have the same key if and only if they agree in every dimension; and a key is UTF-8, whatever the
-- client sent.

local attributes = require "resty.headgate.rules.attributes"
local network = require "resty.headgate.rules.ip_networks"
local remembering = require "resty.headgate.memoize"
local utf8 = require "resty.headgate.text.utf8"

local M = {}

local ALL = "all"

local function escaped(value)
  if not string.find(value, "[%%|\128-\255]") then return value end
  local out, at = {}, 1
  while true do
    local from = string.find(value, "[%%|\128-\255]", at)
    if not from then break end
    out[#out + 1] = string.sub(value, at, from - 1)
    local byte = string.byte(value, from)
    local length = byte >= 128 and utf8.character(value, from)
    out[#out + 1] = length and string.sub(value, from, from + length - 1) or string.format("%%%02X", byte)
    at = from + (length or 1)
  end
  out[#out + 1] = string.sub(value, at)
  return table.concat(out)
end

-- A dimension: the attribute's name, and a function that forms its part of the key; nil if the value has none.
local function dimension(text)
  local lengths = string.match(text, "^address(.*)$")
  if lengths == "" or lengths and string.find(lengths, "^/") then
    local v4, v6 = string.match(lengths, "^/(%d+)/?(%d*)$")
    v4, v6 = tonumber(v4) or 32, tonumber(v6) or 64
    return {
      name = "address", head = "address=",
      part = remembering(function(address)
        local group = network.grouped(address, v4, v6)
        return group and "address=" .. group
      end),
    }
  end
  local name = attributes.folded(text)
  local head = name .. "="
  return { name = name, head = head, part = function(value) return head .. escaped(value) end }
end

-- Dimensions as a document has them: a text, a list, or nothing.
function M.dimensions(said)
  local found = {}
  for i, text in ipairs(type(said) == "string" and { said } or said or {}) do found[i] = dimension(text) end
  return found
end

local function part_of(one, seen)
  local value = seen[one.name]
  if not value or value == "" then return nil end
  return one.part(value)
end

-- The key of a call that has all dimensions from this one on; nil of any other.
local function whole(dimensions, at)
  local one = dimensions[at]
  if at == #dimensions then return function(seen) return part_of(one, seen) end end
  local rest = whole(dimensions, at + 1)
  return function(seen)
    local part = part_of(one, seen)
    local more = part and rest(seen)
    return more and part .. "|" .. more
  end
end

-- The key of a call that lacks some; and the names of those.
local function torn(dimensions, seen)
  local parts, missing = {}, {}
  for i, one in ipairs(dimensions) do
    local part = part_of(one, seen)
    if not part then missing[#missing + 1] = one.name end
    parts[i] = part or one.head
  end
  return table.concat(parts, "|"), missing
end

-- The key of a call, as a function of what is seen. What is missing is blank in it, and named in a list: nil if nothing
-- is.
function M.former(dimensions)
  if #dimensions == 0 then return function() return ALL, nil end end
  local complete = whole(dimensions, 1)
  return function(seen)
    local key = complete(seen)
    if key then return key, nil end
    return torn(dimensions, seen)
  end
end

return M
