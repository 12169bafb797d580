-- JSON as a rulebook is written in it: a reader that remembers in which order names stood, and a writer of texts.
--
-- Of the cases of a choice the first that holds is taken, so their order is part of what a book says; other readers
-- forget it. `names` tells it. A null in a mapping is absent. No book holds half a character.
--
-- Laws (tests/nginx/test_json.py): what is not JSON is an error that says where, and never half a document; whatever is
-- quoted is read as it was.

local utf8 = require "resty.headgate.text.utf8"

local M = {}

local ESCAPES = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
local ESCAPED = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n" }
local QUOTE, BACKSLASH, SPACE = string.byte('"\\ ', 1, 3)
local WORDS = { { "true", true }, { "false", false }, { "null", nil } }

local byte = string.byte
local value

local function fail(at, wanted) error("This is not JSON: " .. wanted .. " was expected at byte " .. at .. ".", 0) end

local function skip(text, at) return string.find(text, "[^ \t\r\n]", at) or #text + 1 end

local function expect(text, at, character)
  at = skip(text, at)
  if string.sub(text, at, at) ~= character then fail(at, character) end
  return at + 1
end

-- The character of \uXXXX, of two of them if they are a pair; and where it ends.
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

-- Where the plain part of a text ends, and with which byte: a quote, a backslash, what may not be there, or nil. LuaJIT
-- compiles this, and no search by a pattern: a plate carries half a megabyte of scripts, and a worker does nothing else
-- while it reads them.
local function plain_until(text, at)
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
    local stop, code = plain_until(text, at)
    pieces[#pieces + 1] = string.sub(text, at, stop - 1)
    if code == QUOTE then return table.concat(pieces), stop + 1 end
    if code ~= BACKSLASH then fail(stop, code and "an escape" or '"') end
    local plain = ESCAPES[string.sub(text, stop + 1, stop + 1)]
    if plain then
      pieces[#pieces + 1], at = plain, stop + 2
    else
      pieces[#pieces + 1], at = code_point(text, stop + 1)
    end
  end
end

local function closed(text, at, bracket)
  at = skip(text, at)
  local character = string.sub(text, at, at)
  if character ~= bracket and character ~= "," then fail(at, bracket) end
  return character == bracket, at + 1
end

local function read_mapping(text, at)
  local found, names = {}, {}
  at = skip(text, at)
  local done = string.sub(text, at, at) == "}"
  if done then at = at + 1 end
  while not done do
    local name
    name, at = read_text(text, at)
    at = expect(text, at, ":")
    if found[name] == nil then names[#names + 1] = name end
    found[name], at = value(text, at)
    done, at = closed(text, at, "}")
  end
  return setmetatable(found, { names = names }), at
end

local function read_list(text, at)
  local found = {}
  at = skip(text, at)
  local done = string.sub(text, at, at) == "]"
  if done then at = at + 1 end
  while not done do
    local one
    one, at = value(text, at)
    if one == nil then fail(at, "a value instead of null") end
    found[#found + 1] = one
    done, at = closed(text, at, "]")
  end
  return found, at
end

function value(text, at)
  at = skip(text, at)
  local character = string.sub(text, at, at)
  if character == "{" then return read_mapping(text, at + 1) end
  if character == "[" then return read_list(text, at + 1) end
  if character == '"' then return read_text(text, at) end
  for _, word in ipairs(WORDS) do
    if string.sub(text, at, at + #word[1] - 1) == word[1] then return word[2], at + #word[1] end
  end
  local digits = string.match(text, "^-?%d+%.?%d*[eE]?[+-]?%d*", at)
  local number = digits and tonumber(digits)
  if not number then fail(at, "a value") end
  return number, at + #digits
end

function M.decode(text)
  local found, at = value(text, 1)
  at = skip(text, at)
  if at <= #text then fail(at, "the end") end
  return found
end

-- A text as JSON has it, in quotes.
function M.quoted(text)
  local pieces, at = { '"' }, 1
  while true do
    local stop, code = plain_until(text, at)
    pieces[#pieces + 1] = string.sub(text, at, stop - 1)
    if not code then break end
    local character = string.sub(text, stop, stop)
    pieces[#pieces + 1] = ESCAPED[character] or string.format("\\u%04x", code)
    at = stop + 1
  end
  pieces[#pieces + 1] = '"'
  return table.concat(pieces)
end

-- The names of a mapping, in the order in which they stood; those of a null among them.
function M.names(mapping) return getmetatable(mapping).names end

return M
