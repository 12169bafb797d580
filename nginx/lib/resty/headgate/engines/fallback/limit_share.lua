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
-- calendar, and the text of the whole limit. Each call creates a new one, so the caller caches it; for a single member
-- it is the bundle's own. Each algorithm divides its own numbers (`share` or `divide_rate` in lua/algorithms).
--
-- Laws (tests/nginx/engines/test_limit_share_parity.py):
--   - `share` equals Python's, and is nil where Python's is None: also where a share cannot be written;
--   - so the shares of all ranks together hold at most the limit, in units at once and in rate; and equal shares have
--     at most its rate together, and at least one unit each;
--   - `even` is never nil: of a limit that cannot be divided among so many, it is a share among half as many, and so
--     on.

local limit_arithmetic = require "resty.headgate.limit_arithmetic"
local limit_quota = require "resty.headgate.limit_quota"

local M = {}

local floor, fmod, max, min = math.floor, math.fmod, math.max, math.min

-- Returns how many of the units fall to this rank; without a rank, those that fall to every member.
local function units_of_rank(units, count, rank)
  return limit_arithmetic.floor_div(units, count) + (rank and rank < fmod(units, count) and 1 or 0)
end

-- Returns the limit with `units` units, and its rate divided by the number of sharers; nil if that cannot be written.
local function divide_limit(limit, units, count, sharers)
  local model, numbers = require("resty.headgate.algorithms." .. limit.algorithm), nil
  local whole_limit = model.limit(limit.numbers, 1)
  if model.divide_rate then
    numbers = model.divide_rate(whole_limit, count, limit_arithmetic)
  elseif units > 0 then
    numbers = model.share(whole_limit, units, sharers, limit_arithmetic)
  end
  if not numbers then return nil end
  for i, number in ipairs(numbers) do
    if type(number) == "number" then numbers[i] = limit_arithmetic.digits(number) end
  end
  return limit_quota.complete {
    algorithm = limit.algorithm, text = limit.text, numbers = numbers, calendar = limit.calendar,
  }
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
