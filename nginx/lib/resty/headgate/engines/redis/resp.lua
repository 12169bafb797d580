-- The protocol of Redis and Valkey (RESP2): encodes commands, parses replies. Pure.
--
-- A reply is parsed from the text that has arrived so far, byte by byte: a decision is seven integers in some seventy
-- bytes, and they nearly always arrive in one piece. `read` returns the reply and where the next one begins. While a
-- part is missing it returns nil and how many more bytes there are at least; nil alone means that this is no reply at
-- all.
--
--   :7      7              *2 ...   a list           -ERR no   { error = "ERR no" }
--   $1 a    "a"            $-1 *-1  false: a list may hold it, and nil would end the list
--
-- Laws (tests/nginx/engines/redis/test_resp.py): read undoes pack; a reply that is cut anywhere is incomplete and never
-- misread; the number of missing bytes is never too large. Integers are exact up to 2^53.

local new_table = require "table.new"

local byte, find, format, sub = string.byte, string.find, string.format, string.sub

local M = {}

local CR, LF, MINUS, ZERO, NINE = 13, 10, 45, 48, 57
local INTEGER, LIST, BULK, STATUS, ERROR = 58, 42, 36, 43, 45
local MAX_PREALLOCATED = 64 -- elements of a list, whatever length it announces

-- Parses the number whose digits begin here.
local function read_integer(text, at)
  local result, sign, digit = 0, 1, byte(text, at)
  if digit == MINUS then
    sign, at = -1, at + 1
    digit = byte(text, at)
  end
  local first = at
  while digit and digit >= ZERO and digit <= NINE do
    result, at = result * 10 + (digit - ZERO), at + 1
    digit = byte(text, at)
  end
  if not digit then return nil, 2 end
  if digit ~= CR or at == first then return nil end
  local last = byte(text, at + 1)
  if last == LF then return sign * result, at + 2 end
  return nil, not last and 1 or nil
end

local function read_line(text, at)
  local stop = find(text, "\r\n", at, true)
  if not stop then return nil, 1 end
  return sub(text, at, stop - 1), stop + 2
end

local function read_bulk(text, at)
  local length, body_at = read_integer(text, at)
  if not length then return nil, body_at end
  if length < 0 then return false, body_at end
  local next_at = body_at + length + 2
  if #text < next_at - 1 then return nil, next_at - 1 - #text end
  if byte(text, next_at - 2) ~= CR or byte(text, next_at - 1) ~= LF then return nil end
  return sub(text, body_at, next_at - 3), next_at
end

local function read_list(text, at)
  local count
  count, at = read_integer(text, at)
  if not count then return nil, at end
  if count < 0 then return false, at end
  local result = new_table(count < MAX_PREALLOCATED and count or MAX_PREALLOCATED, 0)
  for i = 1, count do
    local element
    if byte(text, at) == INTEGER then
      element, at = read_integer(text, at + 1)
    else
      element, at = M.read(text, at)
    end
    if element == nil then return nil, at end
    result[i] = element
  end
  return result, at
end

function M.read(text, at)
  local reply_type = byte(text, at)
  if reply_type == LIST then return read_list(text, at + 1) end
  if reply_type == INTEGER then return read_integer(text, at + 1) end
  if reply_type == BULK then return read_bulk(text, at + 1) end
  if reply_type == nil then return nil, 3 end
  if reply_type ~= STATUS and reply_type ~= ERROR then return nil end
  local text_line, next_at = read_line(text, at + 1)
  if text_line and reply_type == ERROR then text_line = { error = text_line } end
  return text_line, next_at
end

-- Returns a whole number in decimal digits, also where Lua would write an exponent.
function M.number(value)
  if value < 1e14 and value > -1e14 then return value .. "" end
  return format("%.0f", value)
end

function M.bulk(arg) return "$" .. #arg .. "\r\n" .. arg .. "\r\n" end

-- Encodes all arguments of a command, without their count.
function M.bulks(args)
  local packed = {}
  for i, arg in ipairs(args) do packed[i] = M.bulk(type(arg) == "number" and M.number(arg) or arg) end
  return table.concat(packed)
end

function M.command(args) return "*" .. #args .. "\r\n" .. M.bulks(args) end

-- Replaces the SHA1 in a request by the script's text: the server that executes it knows the script from then on.
function M.with_text(packed, text)
  local line_end = find(packed, "\r\n", 1, true)
  local after_sha = line_end + 2 + #"$7\r\nEVALSHA\r\n" + #"$40\r\n" + 42
  return sub(packed, 1, line_end + 1) .. "$4\r\nEVAL\r\n" .. M.bulk(text) .. sub(packed, after_sha)
end

return M
