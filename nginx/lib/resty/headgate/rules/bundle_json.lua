-- Reads and writes the JSON of bundles by lua-cjson.
--
-- A null in a mapping is absent. Whole numbers are exact up to 2^53; NaN, infinities and hexadecimal numbers are no
-- JSON. A decoded mapping has no order: what has one is a list in the bundle.
--
-- Laws (tests/nginx/rules/test_bundle_json.py): a text that is not JSON is an error that says where, and never half a
-- document; decoding an encoded text returns the text.

local is_installed, cjson = pcall(require, "cjson")
if not is_installed then
  error("headgate needs lua-cjson. In Debian: apt install lua-cjson. OpenResty has it.", 0)
end

local M = {}

local MAX_DEPTH = 100

local reader = cjson.new()
reader.decode_invalid_numbers(false)
reader.decode_max_depth(MAX_DEPTH)

local NULL = cjson.null

local function drop_nulls(container)
  for name, value in pairs(container) do
    if value == NULL then
      if type(name) == "number" then error("This is not a bundle's JSON: a list contains null.", 0) end
      container[name] = nil
    elseif type(value) == "table" then
      drop_nulls(value)
    end
  end
  return container
end

function M.decode(text)
  local ok, value = pcall(reader.decode, text)
  if not ok then error("This is not JSON: " .. value .. ".", 0) end
  if value == NULL then return nil end
  return type(value) == "table" and drop_nulls(value) or value
end

-- Returns a text as JSON, in quotes.
M.encode = reader.encode

return M
