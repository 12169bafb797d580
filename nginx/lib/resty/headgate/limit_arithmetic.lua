-- The arithmetic by which algorithms compute quotas and shares in nginx (their `--@gateway` parts): exact, though some
-- products need more bits than a double has.
--
-- Laws (tests/nginx/engines/test_limit_share_parity.py): each returns what Python computes in integers.

local exact_compare = require "resty.headgate.exact_compare"

local M = { at_most = exact_compare.at_most }

local SECOND_US, CENTURY_US, MAX_EXACT = 1000000, 36500 * 86400000000, 9007199254740992

local floor, fmod = math.floor, math.fmod

function M.digits(number) return string.format("%.0f", number) end

function M.digit_count(number) return #string.format("%.17g", number) end

function M.floor_div(dividend, divisor) return (dividend - fmod(dividend, divisor)) / divisor end

function M.ceil_div(dividend, divisor)
  local remainder = fmod(dividend, divisor)
  return (dividend - remainder) / divisor + (remainder > 0 and 1 or 0)
end

-- Returns the greatest common divisor. fmod is exact where % is not.
function M.gcd(a, b)
  while b > 0 do a, b = b, fmod(a, b) end
  return a
end

-- Rounds half to even, as Python does.
local function rounded(number)
  local down = floor(number)
  local fraction = number - down
  if fraction > 0.5 or fraction == 0.5 and down % 2 == 1 then return down + 1 end
  return down
end

-- Returns a duration as a limit stores it that is made from seconds; nil if it is too long.
function M.stored_us(us) return us < MAX_EXACT and rounded(us / SECOND_US * SECOND_US) or nil end

-- Returns amount * SECOND_US / period_us, if that is whole: without the product, which a double may not hold.
function M.per_second(amount, period_us)
  local divisor = M.gcd(SECOND_US, period_us)
  local reduced_period_us = period_us / divisor
  return fmod(amount, reduced_period_us) == 0 and amount / reduced_period_us * (SECOND_US / divisor) or nil
end

-- Returns the quota of `amount` units in a window.
function M.window_quota(amount, period_us)
  local window = M.ceil_div(period_us, SECOND_US)
  return { quota = amount, window = window, per_second = M.per_second(amount, period_us), fresh = amount }
end

-- Returns the time in which each sharer may have one unit, rounded up; unchanged where the amount is enough for all.
local function lengthened(us, amount, sharers)
  if amount >= sharers then return us end
  local remainder_us = fmod(us, amount)
  return (us - remainder_us) / amount * sharers + M.floor_div(remainder_us * sharers + amount - 1, amount)
end

-- Returns the length of a window of `cells` cells, for one sharer; nil if it is too long.
function M.window_us(amount, cell_us, sharers, cells)
  local us = M.stored_us(lengthened(cell_us, amount, sharers) * cells)
  return us and us <= CENTURY_US and fmod(us, cells) == 0 and us or nil
end

-- Returns the shortest text that parses to this double.
local function shortest_text(number)
  for precision = 15, 17 do
    local text = string.format("%." .. precision .. "g", number)
    if tonumber(text) == number then return text end
  end
end

-- Returns a double as Python writes it.
function M.float_text(number)
  return number == floor(number) and M.digits(number) .. ".0" or shortest_text(number)
end

-- Returns the next double towards 0.
function M.next_below(number)
  local mantissa, exponent = math.frexp(number)
  return number - math.ldexp(1, exponent - (mantissa == 0.5 and 54 or 53))
end

return M
