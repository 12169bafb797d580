-- A stock: the extra units of one order, and what is told of each. Knows no nginx and no Redis. The twin of
-- engines/layers/prefetch/prefetched_units.py; the story stands in lease.lua.
--
--   since_us, until_us   when it may be handed out, by the real time of its machine
--   told, reset_us, at_us, mark     what the order's answer said: remaining, reset_after, at, mark
--   extra, cost, lately  what it held at first, what the call took that ordered it, what was asked for just before
--   counter              the name of its number in the dict: how many units are left
--
-- How many units are left is not here, but in the dict. Everything else of a stock never changes, so a worker reads it
-- once, from a line of text.
--
-- Laws (tests/nginx/engines/test_prefetched_units.py): U and each unit's receipt are Python's; where doubles are too
-- coarse, a receipt is a microsecond or two short, never long.

local M = { STOCK = 9 } -- the place in facts where the stock stands that they are of

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local CAPACITY = { token_bucket = 3, fixed_window = 1, sliding_window = 1, sliding_log = 1 } -- which of the numbers
local MOST = 2 ^ 40 -- so that no sum of them is rounded
local EXACT = 2 ^ 52

-- How many units of a key one nginx holds at most: U. None are held of a limit that paces its calls.
function M.bound(limit, units)
  local at = CAPACITY[limit.algorithm]
  if not at then return 0 end
  return min(MOST, units or max(1, floor(tonumber(limit.numbers[at]) / 10)))
end

-- How far apart units drain, as period and amount: of a token bucket a unit's water ends where that of the next begins.
function M.spread(limit)
  if limit.algorithm ~= "token_bucket" then return 0, 1 end
  return tonumber(limit.numbers[2]), tonumber(limit.numbers[1])
end

local LINE = "%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %s"
local NUMBER = "(%-?%d+) "
local READ = "^" .. string.rep(NUMBER, 9) .. "(%S+)$"

-- When the next one is to be ordered: with so little left, or so late.
local function noted(stock)
  stock.low = floor(stock.extra / 4)
  stock.late_us = stock.until_us - floor((stock.until_us - stock.since_us) / 4)
  return stock
end

-- The stock that these fields tell, with its line of text.
function M.new(stock)
  stock.text = string.format(LINE, stock.since_us, stock.until_us, stock.told, stock.reset_us, stock.at_us, stock.mark,
    stock.extra, stock.cost, stock.lately, stock.counter)
  return noted(stock)
end

function M.read(text)
  local since, till, told, reset, at, mark, extra, cost, lately, counter = string.match(text, READ)
  if not counter then return nil end
  return noted {
    text = text, since_us = tonumber(since), until_us = tonumber(till), told = tonumber(told),
    reset_us = tonumber(reset), at_us = tonumber(at), mark = tonumber(mark), extra = tonumber(extra),
    cost = tonumber(cost), lately = tonumber(lately), counter = counter,
  }
end

-- Where the water of the unit ends after which so many are left, and its mark. A part of a microsecond is left out, and
-- where a product is rounded a whole one: that is to the safe side.
local function unit_end(own, stock, left)
  local spread = own.spread
  if spread == 0 then return stock.reset_us, stock.mark end
  local product = left * spread
  local before = ceil(product / own.rate)
  if product >= EXACT then before = before + 1 end
  local part = math.fmod(stock.mark, own.rate)
  return stock.reset_us - (part > 0 and 1 or 0) - before, stock.mark - part
end

-- The facts of a call after which so many units are left: aged, as if it had been asked just now.
function M.facts(own, stock, left, now_us)
  local reset_us, mark = unit_end(own, stock, left)
  local age_us = now_us - stock.since_us
  return { 1, stock.told + left, 0, max(0, reset_us - age_us), 0, stock.at_us + age_us, mark, nil, stock }
end

-- What the inner engine left behind for that very call: not aged, so that it can be given back.
function M.receipt(own, stock, left)
  local reset_us, mark = unit_end(own, stock, left)
  return { 1, stock.told + left, 0, reset_us, 0, stock.at_us, mark }
end

-- The same of all that is left.
function M.rest(stock) return { 1, stock.told, 0, stock.reset_us, 0, stock.at_us, stock.mark } end

-- Whether the count that it was charged to may still be there.
function M.counts(stock, now_us) return now_us < stock.since_us + stock.reset_us end

-- Units that were asked for during the last hold time, as this stock tells: what was handed out of it, and as much of
-- what was asked for before it as is not longer ago.
function M.lately(stock, left, hold_us, now_us)
  local used, elapsed_us = stock.extra + stock.cost - left, max(0, now_us - stock.since_us)
  if elapsed_us >= hold_us then return floor(used * hold_us / elapsed_us) end
  return used + floor(stock.lately * (hold_us - elapsed_us) / hold_us)
end

-- How many units to order beside the call's: a multiple of its cost, so that calls of one cost leave nothing behind.
function M.extra(most, lately, remaining, cost, hot)
  if lately < hot * cost then return 0 end
  return floor(min(most, lately, remaining / 2) / cost) * cost
end

return M
