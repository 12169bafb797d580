-- SHA-256 in plain LuaJIT, for whoever has no other: the checksum that stands for a key of more than 200 bytes.
--
-- Its constants are bits of numbers that nobody chose: the first 32 of the fractions of the square roots of the first
-- eight primes, and of the cube roots of the first sixty-four.

local bit = require "bit"

local band, bnot, bxor, ror, rshift, tobit = bit.band, bit.bnot, bit.bxor, bit.ror, bit.rshift, bit.tobit

local function fraction(root) return tobit(math.floor(root % 1 * 2 ^ 32)) end

local BEGIN, ROUNDS = {}, {}
do
  local candidate = 2
  while #ROUNDS < 64 do
    local prime = true
    for divisor = 2, math.floor(math.sqrt(candidate)) do prime = prime and candidate % divisor ~= 0 end
    if prime and #BEGIN < 8 then BEGIN[#BEGIN + 1] = fraction(math.sqrt(candidate)) end
    if prime then ROUNDS[#ROUNDS + 1] = fraction(candidate ^ (1 / 3)) end
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

-- The block's sixteen words, drawn out to sixty-four.
local function schedule(text, at)
  local w = {}
  for i = 1, 16 do
    local a, b, c, d = string.byte(text, at + 4 * i - 4, at + 4 * i - 1)
    w[i] = tobit(a * 2 ^ 24 + b * 2 ^ 16 + c * 2 ^ 8 + d)
  end
  for i = 17, 64 do
    local near, far = w[i - 2], w[i - 15]
    local near_mixed = bxor(ror(near, 17), ror(near, 19), rshift(near, 10))
    local far_mixed = bxor(ror(far, 7), ror(far, 18), rshift(far, 3))
    w[i] = tobit(w[i - 16] + far_mixed + w[i - 7] + near_mixed)
  end
  return w
end

local function absorb(state, w)
  local a, b, c, d, e, f, g, h = unpack(state)
  for i = 1, 64 do
    local chosen = bxor(band(e, f), band(bnot(e), g))
    local more = h + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + chosen + ROUNDS[i] + w[i]
    local most = bxor(band(a, b), band(a, c), band(b, c))
    local less = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + most
    a, b, c, d, e, f, g, h = tobit(more + less), a, b, c, tobit(d + more), e, f, g
  end
  for i, value in ipairs { a, b, c, d, e, f, g, h } do state[i] = tobit(state[i] + value) end
end

-- The checksum of a text, in hex.
return function(text)
  local state = { unpack(BEGIN) }
  local whole = padded(text)
  for at = 1, #whole, 64 do absorb(state, schedule(whole, at)) end
  for i = 1, 8 do state[i] = bit.tohex(state[i]) end
  return table.concat(state)
end
