-- UTF-8 as a strict reader sees it: which bytes are characters, and which are nothing.
--
-- All texts here are bytes. Only where a key is written does it matter what they mean: overlong forms, surrogates
-- and what lies above U+10FFFF are no characters, and each of their bytes stands for itself.
--
-- Law (tests/nginx): a byte belongs to a character exactly where Python's strict decoder says so.

local M = {}

-- Where the second byte of a character must lie, by its first; everywhere else from 80 to BF.
local LOW = { [0xE0] = 0xA0, [0xF0] = 0x90 }
local HIGH = { [0xED] = 0x9F, [0xF4] = 0x8F }

local function continues(byte) return byte and byte >= 0x80 and byte <= 0xBF end

-- How many bytes the character has that begins here; nil if none does.
function M.character(text, at)
  local first, second, third, fourth = string.byte(text, at, at + 3)
  if first < 0x80 then return 1 end
  if first < 0xC2 or first > 0xF4 or not second then return nil end
  if second < (LOW[first] or 0x80) or second > (HIGH[first] or 0xBF) then return nil end
  if first < 0xE0 then return 2 end
  if not continues(third) then return nil end
  if first < 0xF0 then return 3 end
  return continues(fourth) and 4 or nil
end

-- How many characters the text has; a byte that is none counts as one.
function M.count(text)
  local found, at = 0, 1
  while at <= #text do
    found, at = found + 1, at + (M.character(text, at) or 1)
  end
  return found
end

-- The bytes of a code point.
function M.bytes(code)
  if code < 0x80 then return string.char(code) end
  local function tail(shift) return 0x80 + math.floor(code / shift) % 64 end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), tail(1)) end
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 4096), tail(64), tail(1)) end
  return string.char(0xF0 + math.floor(code / 262144), tail(4096), tail(64), tail(1))
end

return M
