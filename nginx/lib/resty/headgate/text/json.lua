-- Decodes the JSON of a rulebook, remembering the order of names, and quotes texts.
--
-- Of the cases of a choice the first that matches is taken, so their order has a meaning; other decoders lose it.
-- `names` returns it. A null in a mapping is absent. No rulebook contains half a character.
--
-- Laws (tests/nginx/test_json.py): a text that is not JSON is an error that says where, and never half a document;
-- decoding a quoted text returns the text.

local utf8 = require "resty.headgate.text.utf8"

local M = {}

local ESCAPES = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
local SHORT_ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n" }
local QUOTE, BACKSLASH, SPACE = string.byte('"\\ ', 1, 3)
local LITERALS = { { "true", true }, { "false", false }, { "null", nil } }

local byte = string.byte
local value

local function fail(at, wanted) error("This is not JSON: " .. wanted .. " was expected at byte " .. at .. ".", 0) end

local function skip(text, at) return string.find(text, "[^ \t\r\n]", at) or #text + 1 end

local function expect(text, at, character)
  at = skip(text, at)
  if string.sub(text, at, at) ~= character then fail(at, character) end
  return at + 1
end

-- Returns the character of \uXXXX, or of a surrogate pair, and where it ends.
local function code_point(text, at)
  local high = tonumber(string.match(text, "^u(%x%x%x%x)", at) or fail(at, "an escape"), 16)
  at = at + 5
  local low = tonumber(string.match(text, "^\\u([dD][c-fC-F]%x%x)", at) or "0", 16)
  if high >= 0xD800 and high <= 0xDBFF and low > 0 then
    return utf8.bytes(0x10000 + (high - 0xD800) * 1024 + low - 0xDC00), at + 6
  end
  if high >= 0xD800 and high <= 0xDFFF then fail(at, "the other half of a character") end
  return utf8.bytes(high), at
end

-- Returns where the next special byte of a text is, and that byte: a quote, a backslash, a control character, or nil.
-- LuaJIT compiles this loop, and no search by a pattern: a bundle carries half a megabyte of scripts, and a worker does
-- nothing else while it decodes them.
local function find_special(text, at)
  local code = byte(text, at)
  while code and code ~= QUOTE and code ~= BACKSLASH and code >= SPACE do
    at = at + 1
    code = byte(text, at)
  end
  return at, code
end

local function read_text(text, at)
  at = expect(text, at, '"')
  local pieces = {}
  while true do
    local special_at, code = find_special(text, at)
    pieces[#pieces + 1] = string.sub(text, at, special_at - 1)
    if code == QUOTE then return table.concat(pieces), special_at + 1 end
    if code ~= BACKSLASH then fail(special_at, code and "an escape" or '"') end
    local escape = ESCAPES[string.sub(text, special_at + 1, special_at + 1)]
    if escape then
      pieces[#pieces + 1], at = escape, special_at + 2
    else
      pieces[#pieces + 1], at = code_point(text, special_at + 1)
    end
  end
end

local function at_end(text, at, bracket)
  at = skip(text, at)
  local character = string.sub(text, at, at)
  if character ~= bracket and character ~= "," then fail(at, bracket) end
  return character == bracket, at + 1
end

local function read_mapping(text, at)
  local result, names = {}, {}
  at = skip(text, at)
  local done = string.sub(text, at, at) == "}"
  if done then at = at + 1 end
  while not done do
    local name
    name, at = read_text(text, at)
    at = expect(text, at, ":")
    if result[name] == nil then names[#names + 1] = name end
    result[name], at = value(text, at)
    done, at = at_end(text, at, "}")
  end
  return setmetatable(result, { names = names }), at
end

local function read_list(text, at)
  local result = {}
  at = skip(text, at)
  local done = string.sub(text, at, at) == "]"
  if done then at = at + 1 end
  while not done do
    local element
    element, at = value(text, at)
    if element == nil then fail(at, "a value instead of null") end
    result[#result + 1] = element
    done, at = at_end(text, at, "]")
  end
  return result, at
end

function value(text, at)
  at = skip(text, at)
  local character = string.sub(text, at, at)
  if character == "{" then return read_mapping(text, at + 1) end
  if character == "[" then return read_list(text, at + 1) end
  if character == '"' then return read_text(text, at) end
  for _, literal in ipairs(LITERALS) do
    if string.sub(text, at, at + #literal[1] - 1) == literal[1] then return literal[2], at + #literal[1] end
  end
  local digits = string.match(text, "^-?%d+%.?%d*[eE]?[+-]?%d*", at)
  local number = digits and tonumber(digits)
  if not number then fail(at, "a value") end
  return number, at + #digits
end

function M.decode(text)
  local result, at = value(text, 1)
  at = skip(text, at)
  if at <= #text then fail(at, "the end") end
  return result
end

-- Returns a text as JSON, in quotes.
function M.quoted(text)
  local pieces, at = { '"' }, 1
  while true do
    local special_at, code = find_special(text, at)
    pieces[#pieces + 1] = string.sub(text, at, special_at - 1)
    if not code then break end
    local character = string.sub(text, special_at, special_at)
    pieces[#pieces + 1] = SHORT_ESCAPES[character] or string.format("\\u%04x", code)
    at = special_at + 1
  end
  pieces[#pieces + 1] = '"'
  return table.concat(pieces)
end

-- Returns the names of a mapping in their order; those of a null among them.
function M.names(mapping) return getmetatable(mapping).names end

return M
