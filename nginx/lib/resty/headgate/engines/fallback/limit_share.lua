-- Divides a limit among processes that decide without each other. The twin of engines/layers/fallback/limit_share.py
-- and of `even` in enforcement/split_limits.py.
--
-- By rank, where every member has a rank: units are whole, and of 10 units three members get 4, 3 and 3, the lower
-- ranks more. The rate is divided among the members that have a share at all. Equally, where only their number is known
-- and where a rule is split: the rate is divided by the count, whatever the burst, and each holds at least one unit; a
-- window with fewer units than members is lengthened, if it is not a calendar's.
--
-- A rate is divided exactly where an algorithm can (a token bucket of 100/s among three is 100 per 3 s each), and
-- rounded down where it rounds by itself, or where an exact share could not be written down.
--
-- A share is a limit like those of a bundle: algorithm, numbers, fresh, quota, window, per_second, interval_us and
-- calendar, and the text of the whole limit. Each
-- call creates a new one, so the caller caches it; for a single member it is the bundle's own.
--
-- Laws (tests/nginx/engines/test_limit_share_parity.py):
--   - `share` equals Python's, and is nil where Python's is None: also where a share cannot be written;
--   - so the shares of all ranks together hold at most the limit, in units at once and in rate; and equal shares have
--     at most its rate together, and at least one unit each;
--   - `even` is never nil: of a limit that cannot be divided among so many, it is a share among half as many, and so
--     on.

local exact_compare = require "resty.headgate.exact_compare"
local limit_quota = require "resty.headgate.limit_quota"

local M = {}

local SECOND_US, DAY_US = 1000000, 86400000000
local HORIZON_US, CENTURY_US, MAX_EXACT = 366 * DAY_US, 36500 * DAY_US, 9007199254740992

local floor, fmod, max, min = math.floor, math.fmod, math.max, math.min

local function digits(number) return string.format("%.0f", number) end

local function floor_div(dividend, divisor) return (dividend - fmod(dividend, divisor)) / divisor end

-- Rounds half to even, as Python does.
local function rounded(number)
  local down = floor(number)
  local fraction = number - down
  if fraction > 0.5 or fraction == 0.5 and down % 2 == 1 then return down + 1 end
  return down
end

-- Returns a duration as a limit stores it that is made from seconds; nil if it is too long.
local function stored_us(us) return us < MAX_EXACT and rounded(us / SECOND_US * SECOND_US) or nil end


-- Returns the pace of a bucket: sixteen for each doubling of the time that a unit takes, from a sixteenth of a
-- microsecond on.
local function pace_code(unit_us)
  local mantissa, exponent = math.frexp(unit_us)
  return digits(max(100, min(999, 100 + (exponent + 3) * 16 + floor(mantissa * 32) - 16)))
end

-- Returns the numbers of a token bucket; nil where Python refuses it, because it could not fill within 100 years, or be
-- written. (Its burst times its amount is exact: both are at most the limit's own.)
local function bucket(amount, period_us, burst)
  period_us = stored_us(period_us)
  if amount < 1 or burst < 1 or not period_us then return nil end
  local common_divisor = limit_quota.gcd(amount, period_us)
  amount, period_us = amount / common_divisor, period_us / common_divisor
  if not exact_compare.at_most(burst, period_us, CENTURY_US, amount) then return nil end
  return { digits(amount), digits(period_us), digits(burst), pace_code(period_us / amount) }
end

-- Functions that return the numbers of a share, by algorithm; nil if it cannot be written.
local share_makers = {}

-- Multiplies the period, rather than dividing the amount: that is exact. If the last unit of a burst makes a bucket too
-- slow to fill, it is omitted; if the period gets too long to be written, the amount is rounded down.
function share_makers.token_bucket(numbers, share_units, sharer_count)
  local amount, period_us, fewer_units = tonumber(numbers[1]), tonumber(numbers[2]), max(1, share_units - 1)
  return bucket(amount, period_us * sharer_count, share_units)
    or bucket(amount, period_us * sharer_count, fewer_units)
    or bucket(floor_div(amount, sharer_count), period_us, fewer_units)
end

function share_makers.leaky_bucket(numbers, share_units, sharer_count)
  local rate, burst, delay = floor_div(tonumber(numbers[1]), sharer_count), numbers[2] / 1000, tonumber(numbers[3])
  if rate < 1 or share_units > CENTURY_US / 1000 / SECOND_US * rate then return nil end -- too slow to be counted
  if delay >= 0 then delay = max(0, floor_div(min(delay / 1000, burst) + 1, sharer_count) - 1) * 1000 end
  return { digits(rate), digits((share_units - 1) * 1000), digits(delay) }
end

-- Returns the time in which each sharer may have one unit, rounded up; unchanged where the amount is enough for all.
local function lengthened(us, amount, sharer_count)
  if amount >= sharer_count then return us end
  local remainder_us = fmod(us, amount)
  return (us - remainder_us) / amount * sharer_count + floor_div(remainder_us * sharer_count + amount - 1, amount)
end

-- Returns the length of a window of `cells` cells, for one sharer; nil if it is too long.
local function window_us(numbers, sharer_count, cells)
  local us = stored_us(lengthened(tonumber(numbers[2]), tonumber(numbers[1]), sharer_count) * cells)
  return us and us <= CENTURY_US and fmod(us, cells) == 0 and us or nil
end

function share_makers.fixed_window(numbers, share_units, sharer_count, calendar)
  local amount, period_us = digits(share_units), calendar and 0 or window_us(numbers, sharer_count, 1)
  return period_us and { amount, digits(period_us), "0", "0", "0", "0", "0", "0" }
end

function share_makers.sliding_window(numbers, share_units, sharer_count)
  local period_us = window_us(numbers, sharer_count, tonumber(numbers[3]))
  return period_us and { digits(share_units), digits(period_us / numbers[3]), numbers[3] }
end

function share_makers.sliding_log(numbers, share_units, sharer_count)
  local period_us = window_us(numbers, sharer_count, 1)
  return period_us and { digits(share_units), digits(period_us) }
end

function share_makers.slots(numbers, share_units)
  return { digits(share_units), digits(stored_us(tonumber(numbers[2]))) }
end

-- Returns the shortest text that parses to this double.
local function shortest_text(number)
  for precision = 15, 17 do
    local text = string.format("%." .. precision .. "g", number)
    if tonumber(text) == number then return text end
  end
end

local function float_text(number) return number == floor(number) and digits(number) .. ".0" or shortest_text(number) end

-- Returns the next double towards 0.
local function next_below(number)
  local mantissa, exponent = math.frexp(number)
  return number - math.ldexp(1, exponent - (mantissa == 0.5 and 54 or 53))
end

-- Returns whether a smooth limit can have this rate: no unit may take more than 366 days, even when cold.
local function is_valid_rate(rate, warmup_us, shape)
  if not (1 / HORIZON_US < rate / SECOND_US and rate / SECOND_US <= 1) then return false end
  local interval_us = SECOND_US / rate
  return floor(HORIZON_US / (warmup_us > 0 and interval_us * shape or interval_us)) >= 1
end

-- Returns the numbers of a smooth limit of the largest rate that, taken `count` times, is no more than the limit's.
local function smooth(numbers, count)
  local full_rate, warmup_us, shape = tonumber(numbers[1]), tonumber(numbers[2]), tonumber(numbers[3])
  -- A period of that many seconds, so that amounts are as large as rates are small.
  local period, amount = count * SECOND_US, full_rate * SECOND_US
  local period_us = stored_us(period * SECOND_US)
  if not period_us then return nil end
  while true do
    local rate = amount / period
    if amount < 0.0001 or not is_valid_rate(rate, warmup_us, shape) then return nil end
    if exact_compare.at_most(rate, count, full_rate, 1) then
      return { float_text(rate), numbers[2], numbers[3] }
    end
    amount = next_below(amount)
  end
end

-- Returns how many of the units fall to this rank; without a rank, those that fall to every member.
local function units_of_rank(units, count, rank)
  return floor_div(units, count) + (rank and rank < fmod(units, count) and 1 or 0)
end

-- Returns the limit with `share_units` units, and its rate divided by the number of sharers.
local function divide_limit(limit, share_units, count, sharer_count)
  local algorithm, numbers = limit.algorithm, nil
  if algorithm == "smooth" then
    numbers = smooth(limit.numbers, count)
  elseif share_units > 0 then
    numbers = share_makers[algorithm](limit.numbers, share_units, sharer_count, limit.calendar)
  end
  if not numbers then return nil end
  return limit_quota.complete { algorithm = algorithm, text = limit.text, numbers = numbers, calendar = limit.calendar }
end

-- Returns the equal share of one of `count` members: the rate divided by the count, and at least one unit. Remaining
-- units go to the lower ranks, where ranks are known. nil if the limit is too slow to be divided.
local function equal_share(limit, count, rank)
  if count <= 1 then return limit end
  return divide_limit(limit, max(1, units_of_rank(limit.fresh, count, rank)), count, count)
end

-- Returns the share of the member of this rank, counted from 0, among `count`; nil if it has none. A member without a
-- rank has an equal share.
function M.share(limit, count, rank)
  if not rank then return equal_share(limit, count) end
  if count <= 1 then return limit end
  return divide_limit(limit, units_of_rank(limit.fresh, count, rank), count, min(count, limit.fresh))
end

-- Returns the share of one process among `count`, or among fewer if that is too many for the limit.
function M.even(limit, count, rank)
  return equal_share(limit, count, rank) or M.even(limit, floor(count / 2), nil)
end

return M
