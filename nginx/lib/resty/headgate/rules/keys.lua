-- Builds keys: the text that a call is counted under. The twin of rules/keys.py.
--
--   user=ada|address=203.0.113.0/24
--
-- In a value % is written %25, | is %7C, and a byte that is not UTF-8 is %XX. Without dimensions the key is `all`. An
-- address is counted by its network: by default IPv4 by the address and IPv6 by /64.
--
-- Laws: two calls have the same key if and only if they agree in every dimension; and a key is UTF-8, whatever the
-- client sent.

local attributes = require "resty.headgate.rules.attributes"
local ip_networks = require "resty.headgate.rules.ip_networks"
local memoize = require "resty.headgate.memoize"
local strings = require "resty.headgate.text.strings"

local M = {}

local ALL = "all"

local function escaped(value)
  if not string.find(value, "[%%|\128-\255]") then return value end
  local pieces, at = {}, 1
  while true do
    local from = string.find(value, "[%%|\128-\255]", at)
    if not from then break end
    pieces[#pieces + 1] = string.sub(value, at, from - 1)
    local byte = string.byte(value, from)
    local length = byte >= 128 and strings.character_size(value, from)
    pieces[#pieces + 1] = length and string.sub(value, from, from + length - 1) or string.format("%%%02X", byte)
    at = from + (length or 1)
  end
  pieces[#pieces + 1] = string.sub(value, at)
  return table.concat(pieces)
end

-- Returns a dimension: the attribute's name, and its part of the key as a function of a call's attributes; nil if the
-- call lacks it, or if the value has none. `part_of` is a function of the value.
local function dimension_of(name, part_of)
  return {
    name = name, prefix = name .. "=",
    part = function(values)
      local value = values[name]
      if not value or value == "" then return nil end
      return part_of(value)
    end,
  }
end

local function compile_dimension(text)
  local lengths = string.match(text, "^address(.*)$")
  if lengths == "" or lengths and string.find(lengths, "^/") then
    local v4, v6 = string.match(lengths, "^/(%d+)/?(%d*)$")
    v4, v6 = tonumber(v4) or 32, tonumber(v6) or 64
    local dimension = dimension_of("address", memoize(function(address)
      local group = ip_networks.grouped(address, v4, v6)
      return group and "address=" .. group
    end))
    dimension.v4, dimension.v6 = v4, v6 -- prefix lengths
    return dimension
  end
  local name = attributes.normal_name(text)
  local prefix = name .. "="
  return dimension_of(name, function(value) return prefix .. escaped(value) end)
end

-- Compiles the dimensions of a document: a text, a list, or nothing.
function M.dimensions(spec)
  local result = {}
  for i, text in ipairs(type(spec) == "string" and { spec } or spec or {}) do result[i] = compile_dimension(text) end
  return result
end

-- Compiles the key of calls that have all dimensions from this one on; the function returns nil for others.
local function complete_key(dimensions, index)
  local part_of = dimensions[index].part
  if index == #dimensions then return part_of end
  local rest_of_key = complete_key(dimensions, index + 1)
  return function(values)
    local part = part_of(values)
    local following = part and rest_of_key(values)
    return following and part .. "|" .. following
  end
end

-- Returns the key of a call that lacks some dimensions; and their names.
local function incomplete_key(dimensions, values)
  local key_parts, missing = {}, {}
  for i, dimension in ipairs(dimensions) do
    local part = dimension.part(values)
    if not part then missing[#missing + 1] = dimension.name end
    key_parts[i] = part or dimension.prefix
  end
  return table.concat(key_parts, "|"), missing
end

-- Compiles dimensions into a function of attributes that returns the key. Missing attributes are blank in it, and named
-- in a list: nil if none is missing.
function M.compile(dimensions)
  if #dimensions == 0 then return function() return ALL, nil end end
  local key_of = complete_key(dimensions, 1)
  return function(values)
    local key = key_of(values)
    if key then return key, nil end
    return incomplete_key(dimensions, values)
  end
end

return M
