-- Packs timestamps into bytes: 7 each, big-endian, whole numbers below 2^53. A text of timestamps has spare capacity,
-- so that it is mostly written in place.

local byte, char, floor = string.byte, string.char, math.floor

local M = { WIDTH = 7 }

function M.pack(us)
  local high = floor(us / 4294967296)
  local low = us - high * 4294967296
  return char(floor(high / 65536) % 256, floor(high / 256) % 256, high % 256, floor(low / 16777216),
    floor(low / 65536) % 256, floor(low / 256) % 256, low % 256)
end

-- Returns the n-th timestamp of a text, counted from 0.
function M.at(text, n)
  local a, b, c, d, e, f, g = byte(text, n * 7 + 1, n * 7 + 7)
  return (a * 65536 + b * 256 + c) * 4294967296 + d * 16777216 + e * 65536 + f * 256 + g
end

local MIN_CAPACITY = 16
local PADDING = string.rep("\0", 7)

-- Returns the capacity for `count` timestamps: it doubles each time it grows.
function M.capacity(count)
  local capacity = MIN_CAPACITY
  while capacity < count do capacity = capacity + capacity end
  return capacity
end

-- Joins a header and entries, with padding (the timestamp 0) between: never shorter than the previous text.
function M.pad(header, entries, previous)
  local length = M.capacity((#header + #entries) / 7) * 7
  if previous and #previous > length then length = #previous end
  return header .. string.rep(PADDING, (length - #header - #entries) / 7) .. entries
end

-- Returns the timestamps from low up to, not including, high.
function M.cut(text, low, high) return string.sub(text, low * 7 + 1, high * 7) end

return M
