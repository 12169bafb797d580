-- A token bucket from the words of an operator: how many, and a rate per second such as "10", "0.29" or "1e-3".
--
-- The bucket wants whole numbers: so many units in so many microseconds. Up to nine digits are taken at their
-- word: 0.29 is 29 in 100 s, and 100 s give 29, where 100 * 0.29 in doubles gives one less. A number of more digits
-- is most likely a fraction that a machine has printed, as 0.016666666666666666 is 1/60: it becomes the first
-- fraction (of its continued fraction) that differs from it by no more than one in its last digit, or the last one
-- that the bucket can hold exactly.

local M = {}

local DIGITS = 9
local EXACT = 9007199254740992
local LONGEST_FILL_US = 100 * 365 * 86400 * 1000000

local function in_lowest_terms(amount, period_us)
  local a, b = amount, period_us
  while b > 0 do a, b = b, math.fmod(a, b) end
  return amount / a, period_us / a
end

local function times_ten(number, times)
  for _ = 1, math.min(times, 40) do number = number * 10 end
  return number
end

local function fraction(number, within, most_above, most_below)
  local above, below, above_before, below_before = math.floor(number), 1, 1, 0
  local rest = number - above
  while math.abs(above / below - number) > within do
    local term = math.floor(1 / rest)
    local next_above, next_below = term * above + above_before, term * below + below_before
    if not (next_above <= most_above and next_below <= most_below) then break end
    above, above_before, below, below_before = next_above, above, next_below, below
    rest = 1 / rest - term
  end
  return above, below
end

-- "12" is 12. Whatever is not just digits is nil.
function M.whole(text)
  return text and string.find(text, "^%d+$") and tonumber(text) or nil
end

-- "0.29" is 29, 100000000: so many units in so many microseconds. What is no number above zero is nil.
local function ratio(text, burst)
  local mantissa, power = string.match(text, "^([%d.]+)[eE]([+-]?%d+)$")
  mantissa, power = mantissa or text, tonumber(power or 0)
  local before, after = string.match(mantissa, "^(%d*)%.?(%d*)$")
  if not before then return nil end
  local digits, zeros = string.match(before .. after, "^0*(.-)(0*)$")
  if digits == "" then return nil end
  local scale = #after - #zeros - power
  if #digits <= DIGITS then
    return in_lowest_terms(times_ten(tonumber(digits), -scale), times_ten(1000000, scale))
  end
  local number = tonumber(text)
  local last_digit = times_ten(1, -scale) / times_ten(1, scale)
  local above, below = fraction(number, math.max(last_digit, number / EXACT * 2), EXACT / burst, EXACT / 1000000)
  return in_lowest_terms(above, below * 1000000)
end

-- The bucket's limit; or nil and which of the words is no good: "burst", "rate", "period", or "exact" if they are too
-- much together. Without a rate it is a whole bucket in each period of whole seconds.
function M.bucket(burst_text, rate_text, period_text)
  local amount, period_us
  local burst = M.whole(burst_text)
  if not burst or burst < 1 then return nil, "burst" end
  if rate_text then
    amount, period_us = ratio(rate_text, burst)
    if not amount then return nil, "rate" end
  else
    local period = M.whole(period_text)
    if not period or period < 1 then return nil, "period" end
    amount, period_us = in_lowest_terms(burst, period * 1000000)
  end
  if burst * amount > EXACT or period_us > EXACT or burst * period_us > LONGEST_FILL_US * amount then
    return nil, "exact"
  end
  return { amount = amount, period_us = period_us, burst = burst }
end

return M
