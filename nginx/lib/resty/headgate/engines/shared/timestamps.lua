-- Instants as bytes: 7 each, big-endian, whole numbers below 2^53. A text of instants has room to grow, so that most of
-- the time it is written in place.

local byte, char, floor = string.byte, string.char, math.floor

local M = { WIDTH = 7 }

function M.pack(us)
  local high = floor(us / 4294967296)
  local low = us - high * 4294967296
  return char(floor(high / 65536) % 256, floor(high / 256) % 256, high % 256, floor(low / 16777216),
    floor(low / 65536) % 256, floor(low / 256) % 256, low % 256)
end

-- The n-th instant of a text, counted from 0.
function M.at(text, n)
  local a, b, c, d, e, f, g = byte(text, n * 7 + 1, n * 7 + 7)
  return (a * 65536 + b * 256 + c) * 4294967296 + d * 16777216 + e * 65536 + f * 256 + g
end

local FEWEST = 16
local BLANK = string.rep("\0", 7)

-- For how many instants there is room where `count` must fit: twice as much each time it grows.
function M.room(count)
  local room = FEWEST
  while room < count do room = room + room end
  return room
end

-- A header and what is held, with blanks (the instant 0) between: never shorter than what was kept before.
function M.roomy(header, held, before)
  local length = M.room((#header + #held) / 7) * 7
  if before and #before > length then length = #before end
  return header .. string.rep(BLANK, (length - #header - #held) / 7) .. held
end

-- Those from low up to, not including, high.
function M.cut(text, low, high) return string.sub(text, low * 7 + 1, high * 7) end

return M
