-- What a limit gives, and in what time: for limits that no plate tells of, such as shares. The twin of quota,
-- window_seconds and per_second of http/headers.py, and of fresh in engines/layers/fallback/limit_share.py, from the
-- numbers alone.
--
-- Laws (tests/nginx/engines/test_limit_share.py):
--   - what is worked out here is what a plate says of the same limit;
--   - window is nil for slots, and per_second where it is no whole number.

local product = require "resty.headgate.exact_compare"

local M = {}

local SECOND, DAY = 1000000, 86400
local MOST = 999999999999999 -- the largest integer of a structured field
local LONGEST = { day = DAY, week = 7 * DAY, month = 31 * DAY, year = 366 * DAY }

local fmod = math.fmod

local function ceil_div(a, b)
  local rest = fmod(a, b)
  return (a - rest) / b + (rest > 0 and 1 or 0)
end

-- The greatest whole number that divides both. fmod is exact where % is not.
function M.gcd(a, b)
  while b > 0 do a, b = b, fmod(a, b) end
  return a
end

-- amount * SECOND / period_us, if that is whole: without the product, which a double may not hold.
local function rate(amount, period_us)
  local shared = M.gcd(SECOND, period_us)
  local each = period_us / shared
  return fmod(amount, each) == 0 and amount / each * (SECOND / shared) or nil
end

local told = {}

-- A quotient that was rounded down to a whole number is one too few; one that was rounded up to it is right.
function told.token_bucket(amount, period_us, burst)
  local window = math.floor(burst * period_us / (amount * SECOND))
  while not product.at_most(burst, period_us, window * SECOND, amount) do window = window + 1 end
  return burst, window, rate(amount, period_us), burst
end

function told.leaky_bucket(thousandths, burst)
  local most = burst / 1000 + 1
  return most, ceil_div(most * 1000, thousandths), fmod(thousandths, 1000) == 0 and thousandths / 1000 or nil, most
end

function told.fixed_window(amount, period_us, calendar)
  if calendar then return amount, LONGEST[calendar.unit], nil, amount end
  return amount, ceil_div(period_us, SECOND), rate(amount, period_us), amount
end

function told.sliding_log(amount, period_us)
  return amount, ceil_div(period_us, SECOND), rate(amount, period_us), amount
end

function told.sliding_window(amount, cell_us, cells)
  return told.sliding_log(amount, cell_us * cells)
end

function told.slots(amount) return amount, nil, nil, amount end

function told.smooth(per_second, warmup_us, shape)
  local saved_us = warmup_us > 0 and 0 or math.floor(shape * SECOND + 0.5)
  local window = math.max(1, ceil_div(math.max(saved_us, math.ceil(SECOND / per_second)), SECOND))
  local whole = per_second == math.floor(per_second)
  return math.max(1, math.floor(per_second * window)), window, whole and per_second or nil, 1
end

-- The limit, with its quota, window, per_second and fresh.
function M.complete(limit)
  local numbers, third = limit.numbers, limit.calendar
  if limit.algorithm ~= "fixed_window" then third = tonumber(numbers[3]) end
  local most, window, per_second, fresh = told[limit.algorithm](tonumber(numbers[1]), tonumber(numbers[2]), third)
  limit.quota, limit.window, limit.fresh = math.min(MOST, most), window, fresh
  limit.per_second = per_second and math.min(MOST, per_second)
  return limit
end

return M
