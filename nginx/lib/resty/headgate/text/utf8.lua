-- Decodes UTF-8 strictly: which bytes are characters.
--
-- All texts here are bytes. What they mean matters only where a key is written: overlong forms, surrogates and code
-- points above U+10FFFF are no characters, and each of their bytes is escaped by itself.
--
-- Law (tests/nginx): a byte belongs to a character exactly where Python's strict decoder says so.

local M = {}

-- Bounds of the second byte of a character, by its first; otherwise from 80 to BF.
local MIN_SECOND = { [0xE0] = 0xA0, [0xF0] = 0x90 }
local MAX_SECOND = { [0xED] = 0x9F, [0xF4] = 0x8F }

local function continues(byte) return byte and byte >= 0x80 and byte <= 0xBF end

-- Returns how many bytes the character has that begins here; nil if none does.
function M.character(text, at)
  local first, second, third, fourth = string.byte(text, at, at + 3)
  if first < 0x80 then return 1 end
  if first < 0xC2 or first > 0xF4 or not second then return nil end
  if second < (MIN_SECOND[first] or 0x80) or second > (MAX_SECOND[first] or 0xBF) then return nil end
  if first < 0xE0 then return 2 end
  if not continues(third) then return nil end
  if first < 0xF0 then return 3 end
  return continues(fourth) and 4 or nil
end

-- Returns the number of characters of a text; a byte that is none counts as one.
function M.count(text)
  local count, at = 0, 1
  while at <= #text do
    count, at = count + 1, at + (M.character(text, at) or 1)
  end
  return count
end

-- Returns the bytes of a code point.
function M.bytes(code)
  if code < 0x80 then return string.char(code) end
  local function continuation(shift) return 0x80 + math.floor(code / shift) % 64 end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), continuation(1)) end
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 4096), continuation(64), continuation(1)) end
  return string.char(0xF0 + math.floor(code / 262144), continuation(4096), continuation(64), continuation(1))
end

return M
