-- Divides a limit among processes that decide without each other. The twin of engines/layers/fallback/limit_share.py
-- and of `even` in enforcement/split_limits.py.
--
-- By rank, where every member has a rank of its own: units are whole, and of 10 units three members get 4, 3 and 3,
-- those with the lower ranks the more. The rate is divided among those who have a share at all. Equally, where only the
-- number is known and where a rule is split: the rate is divided by the count, whatever the burst, and each holds at
-- least one unit; a window with fewer units than members is lengthened, if it is not a calendar's.
--
-- A rate is divided exactly where an algorithm can (a token bucket of 100/s among three is 100 per 3 s each), and
-- rounded down where it rounds by itself, or where an exact share could not be written down.
--
-- A share is a limit like those of a plate: algorithm, numbers, text, fresh, quota, window, per_second, calendar. It is
-- made anew by each call, so whoever decides by it keeps it; a member that is alone has the plate's own.
--
-- Laws (tests/nginx/engines/test_limit_share.py):
--   - share is what Python's is, word by word, and nil where Python's is None: also where a share cannot be written;
--   - so the shares of all ranks together hold at most the limit, in units at once and in rate; and equal shares have
--     at most its rate together, and at least one unit each;
--   - even is never nil: of a limit that cannot be divided among so many, it is a share among half as many, and so on.

local product = require "resty.headgate.exact_compare"
local quota = require "resty.headgate.limit_quota"

local M = {}

local SECOND, MINUTE, HOUR, DAY = 1000000, 60000000, 3600000000, 86400000000
local HORIZON_US, CENTURY_US, EXACT = 366 * DAY, 36500 * DAY, 9007199254740992

local floor, fmod, max, min = math.floor, math.fmod, math.max, math.min

local function digits(number) return string.format("%.0f", number) end

local function divided(whole, by) return (whole - fmod(whole, by)) / by end

-- Of equals the even one, as Python rounds.
local function rounded(number)
  local whole = floor(number)
  local rest = number - whole
  if rest > 0.5 or rest == 0.5 and whole % 2 == 1 then return whole + 1 end
  return whole
end

-- A length of time as a limit keeps it that is made from seconds; nil if it is too long.
local function kept_us(us) return us < EXACT and rounded(us / SECOND * SECOND) or nil end

local NAMES = { [DAY] = "day", [HOUR] = "hour", [MINUTE] = "minute", [SECOND] = "s" }
local UNITS = { { DAY, "d" }, { HOUR, "h" }, { MINUTE, "m" }, { SECOND, "s" }, { 1000, "ms" }, { 1, "us" } }

local function duration(us)
  for _, unit in ipairs(UNITS) do
    if fmod(us, unit[1]) == 0 then return digits(us / unit[1]) .. unit[2] end
  end
end

local function span(us) return NAMES[us] or duration(us) end

local function limit_of(algorithm, text, numbers, calendar)
  return quota.complete { algorithm = algorithm, text = text, numbers = numbers, calendar = calendar }
end

-- Sixteen paces for each doubling of the time that a unit takes, from a sixteenth of a microsecond on.
local function pace(unit_us)
  local part, exponent = math.frexp(unit_us)
  return digits(max(100, min(999, 100 + (exponent + 3) * 16 + floor(part * 32) - 16)))
end

-- nil where Python refuses: it could not fill within 100 years, or be written. (That its burst times its amount is
-- exact need not be looked at: both are at most the limit's own.)
local function bucket(amount, period_us, burst)
  period_us = kept_us(period_us)
  if amount < 1 or burst < 1 or not period_us then return nil end
  local text = digits(amount) .. "/" .. span(period_us)
  if burst ~= amount then text = text .. " burst " .. digits(burst) end
  local shared = quota.gcd(amount, period_us)
  amount, period_us = amount / shared, period_us / shared
  if not product.at_most(burst, period_us, CENTURY_US, amount) then return nil end
  return limit_of("token_bucket", text, { digits(amount), digits(period_us), digits(burst), pace(period_us / amount) })
end

local shares = {}

-- The period is multiplied, not the amount divided: that is exact. If the last unit of a burst makes a bucket too slow
-- to fill, it is left out; if the period gets too long to be written, the amount is rounded down.
function shares.token_bucket(numbers, part, sharers)
  local amount, period_us, less = tonumber(numbers[1]), tonumber(numbers[2]), max(1, part - 1)
  return bucket(amount, period_us * sharers, part)
    or bucket(amount, period_us * sharers, less)
    or bucket(divided(amount, sharers), period_us, less)
end

function shares.leaky_bucket(numbers, part, sharers)
  local rate, burst, delay = divided(tonumber(numbers[1]), sharers), numbers[2] / 1000, tonumber(numbers[3])
  if rate < 1 or part > CENTURY_US / 1000 / SECOND * rate then return nil end -- too slow to be counted
  local text = digits(rate) .. "/1000s queue " .. digits(part - 1)
  if delay < 0 then
    text = text .. " nodelay"
  else
    delay = max(0, divided(min(delay / 1000, burst) + 1, sharers) - 1)
    if delay > 0 then text = text .. " delay " .. digits(delay) end
    delay = delay * 1000
  end
  return limit_of("leaky_bucket", text, { digits(rate), digits((part - 1) * 1000), digits(delay) })
end

-- The time in which each sharer may have one unit, rounded up; unchanged where the amount is enough for all.
local function lengthened(us, amount, sharers)
  if amount >= sharers then return us end
  local rest = fmod(us, amount)
  return (us - rest) / amount * sharers + divided(rest * sharers + amount - 1, amount)
end

-- The length of a window of `cells` cells, for one sharer; nil if no window is so long.
local function window_us(numbers, sharers, cells)
  local us = kept_us(lengthened(tonumber(numbers[2]), tonumber(numbers[1]), sharers) * cells)
  return us and us <= CENTURY_US and fmod(us, cells) == 0 and us or nil
end

function shares.fixed_window(numbers, part, sharers, calendar)
  local amount, period_us = digits(part), calendar and 0 or window_us(numbers, sharers, 1)
  if not period_us then return nil end
  local place = calendar and calendar.zone ~= "UTC" and " in " .. calendar.zone or ""
  local text = amount .. "/" .. (calendar and calendar.unit or span(period_us)) .. " fixed" .. place
  return limit_of("fixed_window", text, { amount, digits(period_us), "0", "0", "0", "0", "0", "0" }, calendar)
end

function shares.sliding_window(numbers, part, sharers)
  local period_us = window_us(numbers, sharers, tonumber(numbers[3]))
  if not period_us then return nil end
  local text = digits(part) .. "/" .. span(period_us) .. " sliding"
  if numbers[3] ~= "10" then text = text .. " cells " .. numbers[3] end
  return limit_of("sliding_window", text, { digits(part), digits(period_us / numbers[3]), numbers[3] })
end

function shares.sliding_log(numbers, part, sharers)
  local period_us = window_us(numbers, sharers, 1)
  if not period_us then return nil end
  return limit_of("sliding_log", digits(part) .. "/" .. span(period_us) .. " log", { digits(part), digits(period_us) })
end

function shares.slots(numbers, part)
  local ttl_us = kept_us(tonumber(numbers[2]))
  local text = digits(part) .. " slots" .. (ttl_us == 30 * SECOND and "" or " ttl " .. duration(ttl_us))
  return limit_of("slots", text, { digits(part), digits(ttl_us) })
end

-- The shortest text that is this double again.
local function shortest(number)
  for precision = 15, 17 do
    local text = string.format("%." .. precision .. "g", number)
    if tonumber(text) == number then return text end
  end
end

local function decimal(number) return number == floor(number) and digits(number) or shortest(number) end

local function float(number) return number == floor(number) and digits(number) .. ".0" or shortest(number) end

local function length(us)
  if us == 0 then return "0s" end
  local text = span(us)
  return string.find(text, "^%d") and text or "1" .. string.sub(text, 1, 1)
end

local function shape_text(warmup_us, shape)
  if warmup_us > 0 then
    return " warmup " .. length(warmup_us) .. (shape ~= 3 and " cold " .. decimal(shape) or "")
  end
  local burst_us = rounded(shape * SECOND)
  return burst_us ~= SECOND and " burst " .. length(burst_us) or ""
end

-- The next double on the way to 0.
local function below(number)
  local part, exponent = math.frexp(number)
  return number - math.ldexp(1, exponent - (part == 0.5 and 54 or 53))
end

-- Whether a smooth limit can have this rate: no unit may take more than 366 days, be it when cold.
local function can_be_paced(rate, warmup_us, shape)
  if not (1 / HORIZON_US < rate / SECOND and rate / SECOND <= 1) then return false end
  local interval_us = SECOND / rate
  return floor(HORIZON_US / (warmup_us > 0 and interval_us * shape or interval_us)) >= 1
end

-- The largest rate that, taken `count` times, is no more than the limit's.
local function smooth(numbers, count)
  local whole, warmup_us, shape = tonumber(numbers[1]), tonumber(numbers[2]), tonumber(numbers[3])
  local period, amount = count * SECOND, whole * SECOND -- seconds, so that amounts are as large as rates are small
  local period_us = kept_us(period * SECOND)
  if not period_us then return nil end
  while true do
    local rate = amount / period
    if amount < 0.0001 or not can_be_paced(rate, warmup_us, shape) then return nil end
    if product.at_most(rate, count, whole, 1) then
      local text = decimal(amount) .. "/" .. span(period_us) .. " smooth" .. shape_text(warmup_us, shape)
      return limit_of("smooth", text, { float(rate), numbers[2], numbers[3] })
    end
    amount = below(amount)
  end
end

-- The units of so many that fall to this rank; without a rank, those that fall to everybody.
local function units(whole, count, rank)
  return divided(whole, count) + (rank and rank < fmod(whole, count) and 1 or 0)
end

-- The limit with `part` units, and its rate divided by the number of sharers.
local function divide(limit, part, count, sharers)
  if limit.algorithm == "smooth" then return smooth(limit.numbers, count) end
  if part == 0 then return nil end
  return shares[limit.algorithm](limit.numbers, part, sharers, limit.calendar)
end

-- The share of each of `count` members: the rate divided by the count, and at least one unit. Units that are left over
-- go to the lower ranks, where ranks are known. nil if the limit is too slow to be divided so.
local function equal_share(limit, count, rank)
  if count <= 1 then return limit end
  return divide(limit, max(1, units(limit.fresh, count, rank)), count, count)
end

-- The share of the member of this rank, counted from 0, among `count`; nil if there is none for it. A member that knows
-- no rank has an equal share.
function M.share(limit, count, rank)
  if not rank then return equal_share(limit, count) end
  if count <= 1 then return limit end
  return divide(limit, units(limit.fresh, count, rank), count, min(count, limit.fresh))
end

-- The share of one process among so many, or among fewer if they are too many for the limit.
function M.even(limit, count, rank)
  return equal_share(limit, count, rank) or M.even(limit, floor(count / 2), nil)
end

return M
