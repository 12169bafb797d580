-- Compares products that a double cannot hold, exactly.
--
-- A bucket's burst times its period can need a hundred bits, and a double has 53. But what is lost in rounding a
-- product is itself a double, and can be worked out from the halves of both factors. So a product is two doubles: the
-- rounded product, and the rounding error. Products are compared by the first, and if that is equal by the second.
--
-- Law (tests/nginx/engines/test_limit_share_parity.py): for whole numbers up to 2^53 and for any doubles of ordinary
-- size, `at_most` is exact.

local M = {}

-- Splits a number into two halves of 26 bits each, the lower one with a sign, so that products of halves are exact.
local function halves(number)
  local part, exponent = math.frexp(number)
  local high = math.ldexp(math.floor(part * 67108864 + 0.5), exponent - 26)
  return high, number - high
end

local function product(a, b)
  local rounded = a * b
  local a_high, a_low = halves(a)
  local b_high, b_low = halves(b)
  return rounded, ((a_high * b_high - rounded) + a_high * b_low + a_low * b_high) + a_low * b_low
end

-- Returns whether a * b <= c * d. All are 0 or more.
function M.at_most(a, b, c, d)
  local left, left_rest = product(a, b)
  local right, right_rest = product(c, d)
  if left ~= right then return left < right end
  return left_rest <= right_rest
end

return M
