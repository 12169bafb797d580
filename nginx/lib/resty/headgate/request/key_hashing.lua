-- Replaces keys, and the attributes that they are made of, by hashes, for records of decisions. The twin of
-- telemetry/key_hashing.py, which says what is hashed.
--
-- Law (tests/nginx/test_decision_log_hashes.py): one salt gives the same hashes here and in Python.

local cjson = require "cjson"
local hmac_sha256 = require "resty.headgate.text.hmac_sha256"
local keys = require "resty.headgate.rules.keys"
local memoize = require "resty.headgate.memoize"
local strings = require "resty.headgate.text.strings"

local M = {}

local PREFIX, DIGITS = "h-", 16

-- Returns the dimensions of all keys by name; of an address the narrowest network.
local function counted_dimensions(rules)
  local dimensions = {}
  for _, rule in pairs(rules) do
    for _, dimension in ipairs(keys.dimensions(rule.key)) do
      local previous = dimensions[dimension.name]
      if previous and previous.v4 then
        local v4, v6 = math.max(previous.v4, dimension.v4), math.max(previous.v6, dimension.v6)
        dimension = keys.dimensions("address/" .. v4 .. "/" .. v6)[1]
      end
      dimensions[dimension.name] = dimension
    end
  end
  return dimensions
end

-- Returns the names of dimensions as a list in JSON.
local function names_text(dimensions)
  local names = {}
  for name in pairs(dimensions) do names[#names + 1] = name end
  table.sort(names)
  return names[1] and cjson.encode(names) or "[]"
end

local KeyHasher = {}
KeyHasher.__index = KeyHasher

-- Returns what hashes with this salt. Its `key` hashes the value of each dimension of a key; `all` stays what it is.
function M.new(salt)
  local code = hmac_sha256(salt)
  local hash = memoize(function(value) return PREFIX .. string.sub(code(value), 1, DIGITS) end)
  local function hashed_key(key)
    local parts = strings.split(key, "|")
    for i, part in ipairs(parts) do
      local name, value = strings.cut(part, "=")
      if value and value ~= "" then parts[i] = name .. "=" .. hash(value) end
    end
    return table.concat(parts, "|")
  end
  return setmetatable({ hash = hash, key = memoize(hashed_key), books = setmetatable({}, { __mode = "k" }) }, KeyHasher)
end

function KeyHasher:of_book(bundle)
  local book = self.books[bundle]
  if not book then
    local dimensions = counted_dimensions(bundle.rules)
    book = { dimensions = dimensions, names = names_text(dimensions) }
    self.books[bundle] = book
  end
  return book
end

-- Returns the names of the attributes that are hashed, as a list in JSON.
function KeyHasher:hashed_names(bundle) return self:of_book(bundle).names end

-- Returns the value of an attribute that is not empty, hashed if a rule counts by it.
function KeyHasher:attribute(bundle, name, values)
  local dimension = self:of_book(bundle).dimensions[name]
  if not dimension then return values[name] end
  local part = dimension.part(values)
  return self.hash(part and string.sub(part, #dimension.prefix + 1) or "")
end

return M
