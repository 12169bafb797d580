-- Computes SHA-256 in plain LuaJIT: the checksum that replaces a key of more than 200 bytes.
--
-- Its constants are nothing-up-my-sleeve numbers: the first 32 of the fractions of the square roots of the first eight
-- primes, and of the cube roots of the first sixty-four.

local bit = require "bit"

local band, bnot, bxor, ror, rshift, tobit = bit.band, bit.bnot, bit.bxor, bit.ror, bit.rshift, bit.tobit

local function fraction(root) return tobit(math.floor(root % 1 * 2 ^ 32)) end

local INITIAL_STATE, ROUND_CONSTANTS = {}, {}
do
  local candidate = 2
  while #ROUND_CONSTANTS < 64 do
    local prime = true
    for divisor = 2, math.floor(math.sqrt(candidate)) do prime = prime and candidate % divisor ~= 0 end
    if prime and #INITIAL_STATE < 8 then INITIAL_STATE[#INITIAL_STATE + 1] = fraction(math.sqrt(candidate)) end
    if prime then ROUND_CONSTANTS[#ROUND_CONSTANTS + 1] = fraction(candidate ^ (1 / 3)) end
    candidate = candidate + 1
  end
end

local function padded(text)
  local bits, length = #text * 8, {}
  for i = 8, 1, -1 do
    length[i] = string.char(bits % 256)
    bits = math.floor(bits / 256)
  end
  return text .. "\128" .. string.rep("\0", (55 - #text) % 64) .. table.concat(length)
end

-- Expands the block's sixteen words to sixty-four.
local function schedule(text, offset)
  local w = {}
  for i = 1, 16 do
    local a, b, c, d = string.byte(text, offset + 4 * i - 4, offset + 4 * i - 1)
    w[i] = tobit(a * 2 ^ 24 + b * 2 ^ 16 + c * 2 ^ 8 + d)
  end
  for i = 17, 64 do
    local recent, older = w[i - 2], w[i - 15]
    local recent_sigma = bxor(ror(recent, 17), ror(recent, 19), rshift(recent, 10))
    local older_sigma = bxor(ror(older, 7), ror(older, 18), rshift(older, 3))
    w[i] = tobit(w[i - 16] + older_sigma + w[i - 7] + recent_sigma)
  end
  return w
end

local function absorb(state, w)
  local a, b, c, d, e, f, g, h = unpack(state)
  for i = 1, 64 do
    local choice = bxor(band(e, f), band(bnot(e), g))
    local temp1 = h + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + choice + ROUND_CONSTANTS[i] + w[i]
    local majority = bxor(band(a, b), band(a, c), band(b, c))
    local temp2 = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + majority
    a, b, c, d, e, f, g, h = tobit(temp1 + temp2), a, b, c, tobit(d + temp1), e, f, g
  end
  for i, value in ipairs { a, b, c, d, e, f, g, h } do state[i] = tobit(state[i] + value) end
end

-- Returns the checksum of a text, in hex.
return function(text)
  local state = { unpack(INITIAL_STATE) }
  local message = padded(text)
  for offset = 1, #message, 64 do absorb(state, schedule(message, offset)) end
  for i = 1, 8 do state[i] = bit.tohex(state[i]) end
  return table.concat(state)
end
