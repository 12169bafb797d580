-- Prefetched units: the extra units of one fetch, and the outcome of each. Knows no nginx and no Redis. The twin of
-- engines/layers/prefetch/prefetched_units.py; prefetch.lua describes the whole.
--
--   since_us, until_us    when they may be handed out, by the real time of this machine
--   remaining, reset_us, at_us, mark     the outcome of the fetch: remaining, reset_after, at, mark
--   extra, cost           how many there were at first, and how many the call took that fetched them
--   recent_demand         how many were demanded just before
--   counter               the name of their counter in the dict: how many units are left
--
-- The counter is in the dict. Everything else never changes, so a worker parses it once, from a line of text.
--
-- Laws (tests/nginx/engines/test_prefetched_units.py): U and each unit's receipt are Python's; where doubles are too
-- coarse, a receipt is a microsecond or two short, never long.

local M = { PREFETCHED = 9 } -- the index in an outcome of the prefetched units that it is of

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local MAX_UNITS = 2 ^ 40 -- so that no sum of them is rounded
local MAX_EXACT = 2 ^ 52

-- Returns how many units of a key one nginx holds at most: U. None are held of a limit that delays its calls.
function M.max_units(limit, units)
  if not limit.drain then return 0 end
  return min(MAX_UNITS, units or max(1, floor(limit.fresh / 10)))
end

local LINE_FORMAT = "%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %s"
local NUMBER_PATTERN = "(%-?%d+) "
local LINE_PATTERN = "^" .. string.rep(NUMBER_PATTERN, 9) .. "(%S+)$"

-- Sets when the next units are fetched: with so few left, or so late.
local function set_thresholds(prefetched)
  prefetched.refill_below = floor(prefetched.extra / 4)
  prefetched.refill_at_us = prefetched.until_us - floor((prefetched.until_us - prefetched.since_us) / 4)
  return prefetched
end

-- Returns the prefetched units with these fields, and their line of text.
function M.new(prefetched)
  prefetched.text = string.format(LINE_FORMAT, prefetched.since_us, prefetched.until_us, prefetched.remaining,
    prefetched.reset_us, prefetched.at_us, prefetched.mark, prefetched.extra, prefetched.cost,
    prefetched.recent_demand, prefetched.counter)
  return set_thresholds(prefetched)
end

function M.read(text)
  local since, till, remaining, reset, at, mark, extra, cost, recent_demand, counter = string.match(text, LINE_PATTERN)
  if not counter then return nil end
  return set_thresholds {
    text = text, since_us = tonumber(since), until_us = tonumber(till), remaining = tonumber(remaining),
    reset_us = tonumber(reset), at_us = tonumber(at), mark = tonumber(mark), extra = tonumber(extra),
    cost = tonumber(cost), recent_demand = tonumber(recent_demand), counter = counter,
  }
end

-- Returns where the water of a unit ends, by the units that are left after it, and its mark. A fraction of a
-- microsecond is dropped, and where a product is rounded a whole one: that is the safe side.
local function unit_drained_at(prefetcher, prefetched, units_left)
  local period_us = prefetcher.drain_period_us
  if period_us == 0 then return prefetched.reset_us, prefetched.mark end
  local product = units_left * period_us
  local drained_us = ceil(product / prefetcher.drain_amount)
  if product >= MAX_EXACT then drained_us = drained_us + 1 end
  local fraction = math.fmod(prefetched.mark, prefetcher.drain_amount)
  return prefetched.reset_us - (fraction > 0 and 1 or 0) - drained_us, prefetched.mark - fraction
end

-- Returns the outcome of a call after which so many units are left: aged, as if Redis had decided just now.
function M.outcome(prefetcher, prefetched, units_left, now_us)
  local reset_us, mark = unit_drained_at(prefetcher, prefetched, units_left)
  local age_us = now_us - prefetched.since_us
  local remaining = prefetched.remaining + units_left
  return { 1, remaining, 0, max(0, reset_us - age_us), 0, prefetched.at_us + age_us, mark, nil, prefetched }
end

-- Returns the receipt of that call as the inner engine would have it: not aged, so that it can be refunded.
function M.receipt(prefetcher, prefetched, units_left)
  local reset_us, mark = unit_drained_at(prefetcher, prefetched, units_left)
  return { 1, prefetched.remaining + units_left, 0, reset_us, 0, prefetched.at_us, mark }
end

-- Returns the receipt of all units that are left.
function M.receipt_of_rest(prefetched)
  return { 1, prefetched.remaining, 0, prefetched.reset_us, 0, prefetched.at_us, prefetched.mark }
end

-- Returns whether the count that the units were charged to may still exist.
function M.is_counted(prefetched, now_us) return now_us < prefetched.since_us + prefetched.reset_us end

-- Returns the units demanded during the last hold time: those handed out, and a part of the demand before the fetch, in
-- proportion to the rest of the hold time.
function M.recent_demand(prefetched, units_left, hold_us, now_us)
  local handed_out, elapsed_us = prefetched.extra + prefetched.cost - units_left, max(0, now_us - prefetched.since_us)
  if elapsed_us >= hold_us then return floor(handed_out * hold_us / elapsed_us) end
  return handed_out + floor(prefetched.recent_demand * (hold_us - elapsed_us) / hold_us)
end

-- Returns how many units to fetch in addition to the call's: a multiple of its cost, so that calls of one cost leave
-- none behind.
function M.extra(max_extra, recent_demand, remaining, cost, hot_factor)
  if recent_demand < hot_factor * cost then return 0 end
  return floor(min(max_extra, recent_demand, remaining / 2) / cost) * cost
end

return M
