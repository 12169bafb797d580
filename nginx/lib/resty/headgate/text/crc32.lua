-- CRC-32, by which a key is given its place among all keys: the same that zlib, and nginx's ngx.crc32_long, compute.

local bit = require "bit"

local bxor, band, rshift = bit.bxor, bit.band, bit.rshift
local POLYNOMIAL = 0xEDB88320

local steps = {}
for byte = 0, 255 do
  local rest = byte
  for _ = 1, 8 do rest = bxor(rshift(rest, 1), band(rest, 1) * POLYNOMIAL) end
  steps[byte] = rest
end

return function(text)
  local rest = 0xFFFFFFFF
  for i = 1, #text do rest = bxor(steps[band(bxor(rest, string.byte(text, i)), 255)], rshift(rest, 8)) end
  return bxor(rest, 0xFFFFFFFF) % 2 ^ 32
end
