-- Smooth pacing: the twin of algorithms/smooth.py, which tells its story and its laws.
--
-- Every expression is spelled as there, in the same order, so that all bits of the doubles agree.

local floor, max, min = math.floor, math.max, math.min
local M = { width = 3 }

local DAY = 86400 * 1000000
local HORIZON_US = 366 * DAY
local SWING_US = 100000
local EXACT, DEEPEST = 2 ^ 53, 2 ^ 52

-- Guava's fields, for the numbers of a limit or for those a state was written under.
local function numbers(rate, warmup_us, shape)
  local interval_us = 1000000 / rate
  local n = { rate = rate, warmup_us = warmup_us, shape = shape, interval_us = interval_us }
  if warmup_us == 0 then
    n.store, n.cool_us, n.fresh, n.dearest_us = shape * rate, interval_us, 0, interval_us
    n.prices = 2 * floor(max(n.store, 1) * interval_us) + 2
    return n
  end
  local cold_us = interval_us * shape
  n.threshold = 0.5 * warmup_us / interval_us
  n.store = n.threshold + 2.0 * warmup_us / (interval_us + cold_us)
  n.cool_us = warmup_us / n.store
  n.slope = (cold_us - interval_us) / (n.store - n.threshold)
  n.fresh, n.dearest_us, n.prices = n.store, cold_us, EXACT
  return n
end

function M.limit(argv, i)
  return numbers(tonumber(argv[i]), tonumber(argv[i + 1]), tonumber(argv[i + 2]))
end

function M.unpack(text)
  local stored, free_us, stamp_us, rate, warmup_us, shape, rest =
    string.match(text, "^([%d.e+-]+):(%d+):(%d+):([%d.e+-]+):(%d+):([%d.e+-]+):?([%d:]*)$")
  if not stored or #free_us > 16 or #stamp_us > 16 or #warmup_us > 16 then return nil end
  if not (tonumber(stored) and tonumber(rate) and tonumber(shape)) then return nil end
  local given_us, claims_us = string.match(rest, "^(%d+):(%d+)$")
  return {
    stored = tonumber(stored), free_us = tonumber(free_us), stamp_us = tonumber(stamp_us),
    rate = tonumber(rate), warmup_us = tonumber(warmup_us), shape = tonumber(shape),
    given_us = tonumber(given_us) or 0, claims_us = tonumber(claims_us) or 0,
  }
end

function M.pack(state)
  local text = string.format("%.17g:%.0f:%.0f:%.17g:%.0f:%.17g",
    state.stored, state.free_us, state.stamp_us, state.rate, state.warmup_us, state.shape)
  return state.given_us > 0 and string.format("%s:%.0f:%.0f", text, state.given_us, state.claims_us) or text
end

local function saved(limit, stored, free_us, at_us, given_us, claims_us)
  return {
    stored = stored, free_us = free_us, stamp_us = at_us, given_us = given_us, claims_us = claims_us,
    rate = limit.rate, warmup_us = limit.warmup_us, shape = limit.shape,
  }
end

-- Until the store is full, surely: doubles round, and a scaled store may be overfull by a bit.
local function fill_us(limit, stored)
  return floor(max(0, (limit.store - stored) * limit.cool_us)) + 1
end

function M.ttl_ms(limit, state, now_us)
  local life_us = fill_us(limit, state.stored)
  if limit.warmup_us == 0 then life_us = limit.store > 0 and max(life_us, DAY) or 0 end
  return math.ceil((max(state.free_us + life_us, state.claims_us) - now_us) / 1000) + SWING_US / 1000
end

local function under(limit, state)
  return state.rate == limit.rate and state.warmup_us == limit.warmup_us and state.shape == limit.shape
end

-- Returns the instant that a state is decided as of: now, or that of its writing if the clock swings.
local function as_at(state, now_us)
  if state and state.stamp_us > now_us and state.stamp_us <= now_us + SWING_US then return state.stamp_us end
  return now_us
end

-- What is stored, and from when on it is free.
local function settled(limit, state, at_us)
  if not state then return limit.fresh, at_us end
  local stored, free_us = state.stored, state.free_us
  local same = under(limit, state)
  local old = same and limit or numbers(state.rate, state.warmup_us, state.shape)
  if state.stamp_us > at_us then free_us = free_us - (state.stamp_us - at_us) end
  if at_us > free_us then
    stored = min(old.store, stored + (at_us - free_us) / old.cool_us)
    free_us = at_us
  end
  if not same then
    if (old.warmup_us > 0) ~= (limit.warmup_us > 0) then
      stored = limit.fresh
    else
      stored = old.store > 0 and stored * limit.store / old.store or 0
    end
  end
  return stored, free_us
end

function M.retune(limit, state, now_us)
  local at_us = as_at(state, now_us)
  local stored, free_us = settled(limit, state, at_us)
  return saved(limit, stored, free_us, at_us, state and state.given_us or 0, state and state.claims_us or 0)
end

-- What a charge costs, `spent` of it out of the store.
local function price(limit, stored, spent, cost)
  local price_us = floor((cost - spent) * limit.interval_us)
  if limit.warmup_us == 0 then return price_us, floor(price_us + spent * limit.interval_us) end
  local above = stored - limit.threshold
  if above > 0 then
    local steep = min(above, spent)
    local ends_us = (limit.interval_us + above * limit.slope) + (limit.interval_us + (above - steep) * limit.slope)
    price_us = price_us + floor(steep * ends_us / 2.0)
    spent = spent - steep
  end
  price_us = price_us + floor(limit.interval_us * spent)
  return price_us, price_us
end

local function remaining(limit, stored, wait_us)
  if wait_us > 0 then return 0 end
  return limit.warmup_us > 0 and 1 or floor(stored) + 1
end

-- The price of a charge, and above it what was given back before.
local function marked(limit, price_us, given_us)
  local mark = price_us + given_us * limit.prices
  if price_us < limit.prices and mark < DEEPEST then return mark end
  return price_us + DEEPEST
end

function M.decide(limit, state, now_us, cost, patience_us)
  local at_us, given_us, claims_us = as_at(state, now_us), 0, 0
  if state and state.claims_us > now_us and limit.warmup_us == 0 then
    given_us, claims_us = state.given_us, state.claims_us
  end
  local stored, free_us = settled(limit, state, at_us)
  local wait_us = free_us > at_us and free_us - now_us or 0
  local never = cost > floor(HORIZON_US / limit.dearest_us)
  if cost > 0 and not never and (wait_us == 0 or wait_us <= patience_us) then
    local spent = min(cost, stored)
    local price_us, paid_us = price(limit, stored, spent, cost)
    local shut_us = free_us + price_us - at_us
    if shut_us <= HORIZON_US then
      stored, free_us = stored - spent, free_us + price_us
      local reset_us, mark = free_us - now_us + fill_us(limit, stored), marked(limit, paid_us, given_us)
      -- This charge knows what was given back before: so that is kept as long as the charge holds any.
      if given_us > 0 then claims_us = max(claims_us, now_us + reset_us + 1) end
      return { 1, remaining(limit, stored, shut_us), 0, reset_us, wait_us, now_us, mark },
        saved(limit, stored, free_us, at_us, given_us, claims_us)
    end
  end
  local allowed = (cost == 0 and wait_us == 0) and 1 or 0
  local reset_us, mark = free_us - now_us + fill_us(limit, stored), marked(limit, 0, given_us)
  local left = remaining(limit, stored, wait_us)
  local verdict = { allowed, left, never and -1 or wait_us, reset_us, 0, now_us, mark }
  if not state or state.stamp_us <= at_us then return verdict, state end
  -- The clock was set back behind the state, which moves along with it.
  local moved_us = state.free_us - (state.stamp_us - now_us)
  return verdict, saved(state, state.stored, moved_us, now_us, state.given_us, state.claims_us)
end

-- A charge's time, given back: as permits; that of the last charge first as time for which the window is shut.
local function refund_of_burst(limit, state, stored, free_us, at_us, units, receipt, cancel)
  local cost, returned, given_us, claims_us = receipt.cost, receipt.returned, state.given_us, state.claims_us
  local given_before_us, paid_us = 0, receipt.mark - DEEPEST
  if paid_us < 0 then
    paid_us = math.fmod(receipt.mark, limit.prices)
    given_before_us = (receipt.mark - paid_us) / limit.prices
  end
  if not under(limit, state) or given_before_us > given_us then return nil end
  local back_us = floor(paid_us * ((returned + units) / cost)) - floor(paid_us * (returned / cost))
  -- Until when the charge delays a full store, less what was given back since; and until when all of them do.
  local since_us = max(given_us - given_before_us, math.ceil(returned * limit.interval_us))
  local end_us = receipt.at_us + receipt.reset_after_us - since_us
  local full_us = free_us + fill_us(limit, stored)
  local last = full_us == end_us
  if cancel and not last then return nil end
  -- The reset is counted one microsecond late, for doubles round; the charge does not hold that one. And whatever was
  -- given back, no more can have drained of it than drained in all since it was charged.
  local left_us = paid_us - floor(paid_us * (returned / cost)) - max(0, at_us - receipt.at_us)
  local holds_us = max(end_us - 1 - at_us, left_us)
  back_us = min(back_us, holds_us)
  if not last then
    -- No charge is served later than a full store before the highest there was.
    local ahead_us = max(full_us, claims_us) - floor(limit.store * limit.interval_us) - at_us
    back_us = min(back_us, holds_us - max(0, ahead_us), full_us - at_us)
  end
  if back_us <= 0 then return nil end
  if not last or returned + units < cost then -- Something is left above the gap, or of the charge itself.
    given_us = given_us + back_us
    claims_us = max(claims_us, full_us)
    if (given_us + 1) * limit.prices > DEEPEST then return nil end
  end
  -- Only the last charge's own time opens the window earlier: another one may be promised for when it opens.
  local served_us = receipt.at_us + receipt.delay_us
  local shut_us = last and min(back_us, free_us - max(at_us, served_us)) or 0
  stored = min(limit.store, stored + (back_us - shut_us) / limit.interval_us)
  return saved(limit, stored, free_us - shut_us, at_us, given_us, claims_us)
end

-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  local served_us = receipt.at_us + receipt.delay_us
  if not state or (cancel and served_us < now_us) then return nil end
  local at_us = as_at(state, now_us)
  local stored, free_us = settled(limit, state, at_us)
  local cost, returned = receipt.cost, receipt.returned
  units = min(units, cost - returned)
  if limit.warmup_us == 0 then
    return refund_of_burst(limit, state, stored, free_us, at_us, units, receipt, cancel)
  end
  local returned_us = floor(receipt.mark * (returned / cost))
  local back_us = floor(receipt.mark * ((returned + units) / cost)) - returned_us
  local shut_until_us = served_us + receipt.mark - returned_us
  if free_us ~= shut_until_us then return nil end -- Others came after it, and a reservation of theirs may lie ahead.
  local cooled = min(limit.store, stored + units)
  back_us = min(back_us, free_us - at_us, shut_until_us - at_us)
  if units < cost then
    back_us = min(back_us, (price(limit, cooled, min(units, cooled), units)))
  end
  if back_us <= 0 then return nil end
  return saved(limit, cooled, free_us - back_us, at_us, 0, 0)
end

return M
