-- Computes CRC-32, by which a rollout selects keys: the same as zlib's, and as nginx's ngx.crc32_long.

local bit = require "bit"

local bxor, band, rshift = bit.bxor, bit.band, bit.rshift
local POLYNOMIAL = 0xEDB88320

local TABLE = {}
for byte = 0, 255 do
  local checksum = byte
  for _ = 1, 8 do checksum = bxor(rshift(checksum, 1), band(checksum, 1) * POLYNOMIAL) end
  TABLE[byte] = checksum
end

return function(text)
  local checksum = 0xFFFFFFFF
  for i = 1, #text do checksum = bxor(TABLE[band(bxor(checksum, string.byte(text, i)), 255)], rshift(checksum, 8)) end
  return bxor(checksum, 0xFFFFFFFF) % 2 ^ 32
end
