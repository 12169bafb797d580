-- Computes HMAC-SHA-256 (RFC 2104) with one secret.

local bit = require "bit"
local sha256 = require "resty.headgate.text.sha256"

local BLOCK_BYTES, INNER_PAD, OUTER_PAD = 64, 0x36, 0x5c

local function bytes_of(hex)
  return (string.gsub(hex, "..", function(digits) return string.char(tonumber(digits, 16)) end))
end

local function padded_with(secret, pad)
  local block = secret .. string.rep("\0", BLOCK_BYTES - #secret)
  return (string.gsub(block, ".", function(char) return string.char(bit.bxor(string.byte(char), pad)) end))
end

-- Returns a function of a text that returns its code, in hex.
return function(secret)
  if #secret > BLOCK_BYTES then secret = bytes_of(sha256(secret)) end
  local inner, outer = padded_with(secret, INNER_PAD), padded_with(secret, OUTER_PAD)
  return function(text) return sha256(outer .. bytes_of(sha256(inner .. text))) end
end
