-- Parses the limit of a token bucket from text: a burst, and a rate per second such as "10", "0.29" or "1e-3".
--
-- The bucket needs whole numbers: so many units in so many microseconds. Up to nine digits are taken literally: 0.29
-- is 29 in 100 s, and 100 s give 29, where 100 * 0.29 in doubles gives one less. A number of more digits is most
-- likely a fraction that a program has printed, as 0.016666666666666666 is 1/60: it becomes the first convergent of its
-- continued fraction that differs from it by no more than one in its last digit, or the last one that the bucket can
-- hold exactly.

local M = {}

local MAX_LITERAL_DIGITS = 9
local EXACT = 9007199254740992
local MAX_FILL_US = 100 * 365 * 86400 * 1000000

local function in_lowest_terms(amount, period_us)
  local a, b = amount, period_us
  while b > 0 do a, b = b, math.fmod(a, b) end
  return amount / a, period_us / a
end

local function times_ten(number, exponent)
  for _ = 1, math.min(exponent, 40) do number = number * 10 end
  return number
end

local function fraction(number, tolerance, max_numerator, max_denominator)
  local numerator, denominator, previous_numerator, previous_denominator = math.floor(number), 1, 1, 0
  local remainder = number - numerator
  while math.abs(numerator / denominator - number) > tolerance do
    local term = math.floor(1 / remainder)
    local next_numerator = term * numerator + previous_numerator
    local next_denominator = term * denominator + previous_denominator
    if not (next_numerator <= max_numerator and next_denominator <= max_denominator) then break end
    numerator, previous_numerator = next_numerator, numerator
    denominator, previous_denominator = next_denominator, denominator
    remainder = 1 / remainder - term
  end
  return numerator, denominator
end

-- Parses a whole number: "12" is 12. Returns nil for anything but digits.
function M.whole(text)
  return text and string.find(text, "^%d+$") and tonumber(text) or nil
end

-- Parses a rate: "0.29" is 29, 100000000, so many units in so many microseconds. Returns nil unless it is above zero.
local function ratio(text, burst)
  local mantissa, power = string.match(text, "^([%d.]+)[eE]([+-]?%d+)$")
  mantissa, power = mantissa or text, tonumber(power or 0)
  local before, after = string.match(mantissa, "^(%d*)%.?(%d*)$")
  if not before then return nil end
  local digits, zeros = string.match(before .. after, "^0*(.-)(0*)$")
  if digits == "" then return nil end
  local scale = #after - #zeros - power
  if #digits <= MAX_LITERAL_DIGITS then
    return in_lowest_terms(times_ten(tonumber(digits), -scale), times_ten(1000000, scale))
  end
  local number = tonumber(text)
  local last_digit = times_ten(1, -scale) / times_ten(1, scale)
  local tolerance = math.max(last_digit, number / EXACT * 2)
  local numerator, denominator = fraction(number, tolerance, EXACT / burst, EXACT / 1000000)
  return in_lowest_terms(numerator, denominator * 1000000)
end

-- Returns the limit of a bucket; or nil and which argument is invalid: "burst", "rate", "period", or "exact" if they
-- are too large together. Without a rate, each period (in whole seconds) brings a full burst.
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
  if burst * amount > EXACT or period_us > EXACT or burst * period_us > MAX_FILL_US * amount then
    return nil, "exact"
  end
  return { amount = amount, period_us = period_us, burst = burst }
end

return M
