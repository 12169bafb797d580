-- Computes the quota and window of a limit from its numbers, for limits that are in no bundle, such as shares. The twin
-- of quota, window_seconds and per_second of http/headers.py, and of fresh in engines/layers/fallback/limit_share.py.
--
-- Laws (tests/nginx/engines/test_limit_share_parity.py):
--   - the results are what a bundle says of the same limit;
--   - window is nil for slots, and per_second where it is no whole number.

local exact_compare = require "resty.headgate.exact_compare"

local M = {}

local SECOND_US, DAY_S = 1000000, 86400
local MAX_FIELD_INTEGER = 999999999999999 -- the largest integer of a structured field
local CALENDAR_WINDOW_S = { day = DAY_S, week = 7 * DAY_S, month = 31 * DAY_S, year = 366 * DAY_S }

local fmod = math.fmod

local function ceil_div(a, b)
  local remainder = fmod(a, b)
  return (a - remainder) / b + (remainder > 0 and 1 or 0)
end

-- Returns the greatest common divisor. fmod is exact where % is not.
function M.gcd(a, b)
  while b > 0 do a, b = b, fmod(a, b) end
  return a
end

-- Returns amount * SECOND_US / period_us, if that is whole: without the product, which a double may not hold.
local function rate(amount, period_us)
  local divisor = M.gcd(SECOND_US, period_us)
  local reduced_period_us = period_us / divisor
  return fmod(amount, reduced_period_us) == 0 and amount / reduced_period_us * (SECOND_US / divisor) or nil
end

local quota_of = {}

-- Rounds the window up. A quotient that was rounded down to a whole number is one too few; one that was rounded up to
-- it is right.
function quota_of.token_bucket(amount, period_us, burst)
  local window = math.floor(burst * period_us / (amount * SECOND_US))
  while not exact_compare.at_most(burst, period_us, window * SECOND_US, amount) do window = window + 1 end
  return burst, window, rate(amount, period_us), burst
end

function quota_of.leaky_bucket(thousandths, burst)
  local quota = burst / 1000 + 1
  return quota, ceil_div(quota * 1000, thousandths), fmod(thousandths, 1000) == 0 and thousandths / 1000 or nil, quota
end

function quota_of.fixed_window(amount, period_us, calendar)
  if calendar then return amount, CALENDAR_WINDOW_S[calendar.unit], nil, amount end
  return amount, ceil_div(period_us, SECOND_US), rate(amount, period_us), amount
end

function quota_of.sliding_log(amount, period_us)
  return amount, ceil_div(period_us, SECOND_US), rate(amount, period_us), amount
end

function quota_of.sliding_window(amount, cell_us, cells)
  return quota_of.sliding_log(amount, cell_us * cells)
end

function quota_of.slots(amount) return amount, nil, nil, amount end

function quota_of.smooth(per_second, warmup_us, shape)
  local saved_us = warmup_us > 0 and 0 or math.floor(shape * SECOND_US + 0.5)
  local window = math.max(1, ceil_div(math.max(saved_us, math.ceil(SECOND_US / per_second)), SECOND_US))
  local is_whole = per_second == math.floor(per_second)
  return math.max(1, math.floor(per_second * window)), window, is_whole and per_second or nil, 1,
    math.max(1, math.floor(SECOND_US / per_second))
end

-- Returns the limit, with its quota, window, per_second, fresh and interval_us.
function M.complete(limit)
  local numbers, third = limit.numbers, limit.calendar
  if limit.algorithm ~= "fixed_window" then third = tonumber(numbers[3]) end
  local quota, window, per_second, fresh, interval_us =
    quota_of[limit.algorithm](tonumber(numbers[1]), tonumber(numbers[2]), third)
  limit.interval_us = interval_us
  limit.quota, limit.window, limit.fresh = math.min(MAX_FIELD_INTEGER, quota), window, fresh
  limit.per_second = per_second and math.min(MAX_FIELD_INTEGER, per_second)
  return limit
end

return M
