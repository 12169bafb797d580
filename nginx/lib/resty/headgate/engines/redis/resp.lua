-- What Redis and Valkey speak (RESP2): commands packed, replies read. Pure.
--
-- A reply is read from the text that has come so far, byte by byte: a decision is seven integers in some seventy bytes,
-- and they nearly always come in one piece. `read` gives the reply and where the next one begins. While a part is
-- missing it gives nil and how many more bytes there are at least; nil alone says that this is no reply at all.
--
--   :7      7              *2 ...   a list           -ERR no   { error = "ERR no" }
--   $1 a    "a"            $-1 *-1  false: a list may hold it, and nil would end the list
--
-- Laws (tests/nginx/engines/redis/test_resp.py): read undoes pack; a reply cut anywhere is asked on for and never
-- misread; what is said to be missing is never more than what is missing. Integers are exact up to 2^53.

local new_table = require "table.new"

local byte, find, format, sub = string.byte, string.find, string.format, string.sub

local M = {}

local CR, LF, MINUS, ZERO, NINE = 13, 10, 45, 48, 57
local INTEGER, LIST, BULK, STATUS, ERROR = 58, 42, 36, 43, 45
local AHEAD = 64 -- places made for a list at once, whatever it says of its length

-- The number whose digits begin here.
local function integer(text, at)
  local found, sign, digit = 0, 1, byte(text, at)
  if digit == MINUS then
    sign, at = -1, at + 1
    digit = byte(text, at)
  end
  local first = at
  while digit and digit >= ZERO and digit <= NINE do
    found, at = found * 10 + (digit - ZERO), at + 1
    digit = byte(text, at)
  end
  if not digit then return nil, 2 end
  if digit ~= CR or at == first then return nil end
  local last = byte(text, at + 1)
  if last == LF then return sign * found, at + 2 end
  return nil, not last and 1 or nil
end

local function line(text, at)
  local stop = find(text, "\r\n", at, true)
  if not stop then return nil, 1 end
  return sub(text, at, stop - 1), stop + 2
end

local function bulk(text, at)
  local length, from = integer(text, at)
  if not length then return nil, from end
  if length < 0 then return false, from end
  local beyond = from + length + 2
  if #text < beyond - 1 then return nil, beyond - 1 - #text end
  if byte(text, beyond - 2) ~= CR or byte(text, beyond - 1) ~= LF then return nil end
  return sub(text, from, beyond - 3), beyond
end

local function list(text, at)
  local count
  count, at = integer(text, at)
  if not count then return nil, at end
  if count < 0 then return false, at end
  local found = new_table(count < AHEAD and count or AHEAD, 0)
  for i = 1, count do
    local one
    if byte(text, at) == INTEGER then
      one, at = integer(text, at + 1)
    else
      one, at = M.read(text, at)
    end
    if one == nil then return nil, at end
    found[i] = one
  end
  return found, at
end

function M.read(text, at)
  local kind = byte(text, at)
  if kind == LIST then return list(text, at + 1) end
  if kind == INTEGER then return integer(text, at + 1) end
  if kind == BULK then return bulk(text, at + 1) end
  if kind == nil then return nil, 3 end
  if kind ~= STATUS and kind ~= ERROR then return nil end
  local said, beyond = line(text, at + 1)
  if said and kind == ERROR then said = { error = said } end
  return said, beyond
end

-- A whole number as people write it, beyond what Lua does too.
function M.number(value)
  if value < 1e14 and value > -1e14 then return value .. "" end
  return format("%.0f", value)
end

function M.bulk(word) return "$" .. #word .. "\r\n" .. word .. "\r\n" end

-- All words of a command but the count of them.
function M.bulks(words)
  local packed = {}
  for i, word in ipairs(words) do packed[i] = M.bulk(type(word) == "number" and M.number(word) or word) end
  return table.concat(packed)
end

function M.command(words) return "*" .. #words .. "\r\n" .. M.bulks(words) end

-- The same question with the script's text in place of its SHA1: whoever reads it knows the script from then on.
function M.with_text(packed, text)
  local from = find(packed, "\r\n", 1, true)
  local rest = from + 2 + #"$7\r\nEVALSHA\r\n" + #"$40\r\n" + 42
  return sub(packed, 1, from + 1) .. "$4\r\nEVAL\r\n" .. M.bulk(text) .. sub(packed, rest)
end

return M
