-- Smooth pacing: the twin of algorithms/smooth.py, which tells its story and its laws.
--
-- Every expression is written as there, in the same order, so that all bits of the doubles agree.

local floor, max, min = math.floor, math.max, math.min
local M = { width = 3 }

local DAY = 86400 * 1000000
local HORIZON_US = 366 * DAY
local SWING_US = 100000
local EXACT, MARK_LIMIT = 2 ^ 53, 2 ^ 52

-- Returns Guava's fields, for the numbers of a limit or for those that a state was written under.
local function derived_fields(rate, warmup_us, shape)
  local interval_us = 1000000 / rate
  local n = { rate = rate, warmup_us = warmup_us, shape = shape, interval_us = interval_us }
  if warmup_us == 0 then
    n.store, n.cool_us, n.initial, n.coldest_unit_us = shape * rate, interval_us, 0, interval_us
    n.price_range = 2 * floor(max(n.store, 1) * interval_us) + 2
    return n
  end
  local cold_us = interval_us * shape
  n.threshold = 0.5 * warmup_us / interval_us
  n.store = n.threshold + 2.0 * warmup_us / (interval_us + cold_us)
  n.cool_us = warmup_us / n.store
  n.slope = (cold_us - interval_us) / (n.store - n.threshold)
  n.initial, n.coldest_unit_us, n.price_range = n.store, cold_us, EXACT
  return n
end

function M.limit(argv, i)
  return derived_fields(tonumber(argv[i]), tonumber(argv[i + 1]), tonumber(argv[i + 2]))
end

function M.unpack(text)
  local stored, free_us, stamp_us, rate, warmup_us, shape, rest =
    string.match(text, "^([%d.e+-]+):(%d+):(%d+):([%d.e+-]+):(%d+):([%d.e+-]+):?([%d:]*)$")
  if not stored or #free_us > 16 or #stamp_us > 16 or #warmup_us > 16 then return nil end
  if not (tonumber(stored) and tonumber(rate) and tonumber(shape)) then return nil end
  local refunded_total_us, claims_us = string.match(rest, "^(%d+):(%d+)$")
  return {
    stored = tonumber(stored), free_us = tonumber(free_us), stamp_us = tonumber(stamp_us),
    rate = tonumber(rate), warmup_us = tonumber(warmup_us), shape = tonumber(shape),
    refunded_total_us = tonumber(refunded_total_us) or 0, claims_us = tonumber(claims_us) or 0,
  }
end

function M.pack(state)
  local text = string.format("%.17g:%.0f:%.0f:%.17g:%.0f:%.17g",
    state.stored, state.free_us, state.stamp_us, state.rate, state.warmup_us, state.shape)
  if state.refunded_total_us == 0 then return text end
  return string.format("%s:%.0f:%.0f", text, state.refunded_total_us, state.claims_us)
end

local function new_state(limit, stored, free_us, at_us, refunded_total_us, claims_us)
  return {
    stored = stored, free_us = free_us, stamp_us = at_us, refunded_total_us = refunded_total_us, claims_us = claims_us,
    rate = limit.rate, warmup_us = limit.warmup_us, shape = limit.shape,
  }
end

-- Returns the time until the store is full for certain: doubles round, and a scaled store may be overfull by a bit.
local function fill_us(limit, stored)
  return floor(max(0, (limit.store - stored) * limit.cool_us)) + 1
end

function M.ttl_ms(limit, state, now_us)
  local life_us = fill_us(limit, state.stored)
  if limit.warmup_us == 0 then life_us = limit.store > 0 and max(life_us, DAY) or 0 end
  return math.ceil((max(state.free_us + life_us, state.claims_us) - now_us) / 1000) + SWING_US / 1000
end

local function has_args(limit, state)
  return state.rate == limit.rate and state.warmup_us == limit.warmup_us and state.shape == limit.shape
end

-- Returns the instant that a state is decided as of: now, or that of its writing if the clock swings.
local function as_at(state, now_us)
  if state and state.stamp_us > now_us and state.stamp_us <= now_us + SWING_US then return state.stamp_us end
  return now_us
end

-- Returns the stored permits and when it is free, also after the clock was set back or under another limit.
local function permits_at(limit, state, at_us)
  if not state then return limit.initial, at_us end
  local stored, free_us = state.stored, state.free_us
  local same = has_args(limit, state)
  local old = same and limit or derived_fields(state.rate, state.warmup_us, state.shape)
  if state.stamp_us > at_us then free_us = free_us - (state.stamp_us - at_us) end
  if at_us > free_us then
    stored = min(old.store, stored + (at_us - free_us) / old.cool_us)
    free_us = at_us
  end
  if not same then
    if (old.warmup_us > 0) ~= (limit.warmup_us > 0) then
      stored = limit.initial
    else
      stored = old.store > 0 and stored * limit.store / old.store or 0
    end
  end
  return stored, free_us
end

function M.retune(limit, state, now_us)
  local at_us = as_at(state, now_us)
  local stored, free_us = permits_at(limit, state, at_us)
  if not state then return new_state(limit, stored, free_us, at_us, 0, 0) end
  return new_state(limit, stored, free_us, at_us, state.refunded_total_us, state.claims_us)
end

-- Returns the price of a charge, `spent` of it out of the store, and what it pays in all.
local function price(limit, stored, spent, cost)
  local price_us = floor((cost - spent) * limit.interval_us)
  if limit.warmup_us == 0 then return price_us, floor(price_us + spent * limit.interval_us) end
  local steep_stored = stored - limit.threshold
  if steep_stored > 0 then
    local steep_spent = min(steep_stored, spent)
    local first_us = limit.interval_us + steep_stored * limit.slope
    local last_us = limit.interval_us + (steep_stored - steep_spent) * limit.slope
    price_us = price_us + floor(steep_spent * (first_us + last_us) / 2.0)
    spent = spent - steep_spent
  end
  price_us = price_us + floor(limit.interval_us * spent)
  return price_us, price_us
end

local function remaining(limit, stored, wait_us)
  if wait_us > 0 then return 0 end
  return limit.warmup_us > 0 and 1 or floor(stored) + 1
end

-- Returns the mark of a charge: its price, and above it what was given back before.
local function pack_mark(limit, price_us, refunded_total_us)
  local mark = price_us + refunded_total_us * limit.price_range
  if price_us < limit.price_range and mark < MARK_LIMIT then return mark end
  return price_us + MARK_LIMIT
end

function M.decide(limit, state, now_us, cost, patience_us)
  local at_us, refunded_total_us, claims_us = as_at(state, now_us), 0, 0
  if state and state.claims_us > now_us and limit.warmup_us == 0 then
    refunded_total_us, claims_us = state.refunded_total_us, state.claims_us
  end
  local stored, free_us = permits_at(limit, state, at_us)
  local wait_us = free_us > at_us and free_us - now_us or 0
  local too_large = cost > floor(HORIZON_US / limit.coldest_unit_us)
  if cost > 0 and not too_large and (wait_us == 0 or wait_us <= patience_us) then
    local spent = min(cost, stored)
    local price_us, paid_us = price(limit, stored, spent, cost)
    local shut_us = free_us + price_us - at_us
    if shut_us <= HORIZON_US then
      stored, free_us = stored - spent, free_us + price_us
      local reset_us, mark = free_us - now_us + fill_us(limit, stored), pack_mark(limit, paid_us, refunded_total_us)
      -- The mark of this charge refers to what was given back before: so that is kept as long as it holds any.
      if refunded_total_us > 0 then claims_us = max(claims_us, now_us + reset_us + 1) end
      return { 1, remaining(limit, stored, shut_us), 0, reset_us, wait_us, now_us, mark },
        new_state(limit, stored, free_us, at_us, refunded_total_us, claims_us)
    end
  end
  local allowed = (cost == 0 and wait_us == 0) and 1 or 0
  local reset_us, mark = free_us - now_us + fill_us(limit, stored), pack_mark(limit, 0, refunded_total_us)
  local units = remaining(limit, stored, wait_us)
  local outcome = { allowed, units, too_large and -1 or wait_us, reset_us, 0, now_us, mark }
  if not state or state.stamp_us <= at_us then return outcome, state end
  -- The clock was set back behind the state, which moves along with it.
  local moved_us = state.free_us - (state.stamp_us - now_us)
  return outcome, new_state(state, state.stored, moved_us, now_us, state.refunded_total_us, state.claims_us)
end

--@refund
-- Gives a charge's time back as permits; that of the last charge first as time that the window is shut.
local function refund_of_burst(limit, state, stored, free_us, at_us, units, receipt, cancel)
  local cost, returned = receipt.cost, receipt.returned
  local refunded_total_us, claims_us = state.refunded_total_us, state.claims_us
  local refunded_before_us, paid_us = 0, receipt.mark - MARK_LIMIT
  if paid_us < 0 then
    paid_us = math.fmod(receipt.mark, limit.price_range)
    refunded_before_us = (receipt.mark - paid_us) / limit.price_range
  end
  if not has_args(limit, state) or refunded_before_us > refunded_total_us then return nil end
  local refunded_us = floor(paid_us * ((returned + units) / cost)) - floor(paid_us * (returned / cost))
  -- Until when the charge delays a full store, less what was given back since; and until when all of them do.
  local since_us = max(refunded_total_us - refunded_before_us, math.ceil(returned * limit.interval_us))
  local end_us = receipt.at_us + receipt.reset_after_us - since_us
  local full_us = free_us + fill_us(limit, stored)
  local is_last = full_us == end_us
  if cancel and not is_last then return nil end
  -- The reset is counted one microsecond late, for doubles round; the charge does not hold that one. And whatever was
  -- given back, no more can have drained of it than drained in all since it was charged.
  local unspent_us = paid_us - floor(paid_us * (returned / cost)) - max(0, at_us - receipt.at_us)
  local undrained_us = max(end_us - 1 - at_us, unspent_us)
  refunded_us = min(refunded_us, undrained_us)
  if not is_last then
    -- No charge is served later than a full store before the highest there was.
    local ahead_us = max(full_us, claims_us) - floor(limit.store * limit.interval_us) - at_us
    refunded_us = min(refunded_us, undrained_us - max(0, ahead_us), full_us - at_us)
  end
  if refunded_us <= 0 then return nil end
  if not is_last or returned + units < cost then -- Something remains above the gap, or of the charge itself.
    refunded_total_us = refunded_total_us + refunded_us
    claims_us = max(claims_us, full_us)
    if (refunded_total_us + 1) * limit.price_range > MARK_LIMIT then return nil end
  end
  -- Only the last charge's own time opens the window earlier: another one may be promised for when it opens.
  local served_us = receipt.at_us + receipt.delay_us
  local shut_us = is_last and min(refunded_us, free_us - max(at_us, served_us)) or 0
  stored = min(limit.store, stored + (refunded_us - shut_us) / limit.interval_us)
  return new_state(limit, stored, free_us - shut_us, at_us, refunded_total_us, claims_us)
end

-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  local served_us = receipt.at_us + receipt.delay_us
  if not state or (cancel and served_us < now_us) then return nil end
  local at_us = as_at(state, now_us)
  local stored, free_us = permits_at(limit, state, at_us)
  local cost, returned = receipt.cost, receipt.returned
  units = min(units, cost - returned)
  if limit.warmup_us == 0 then
    return refund_of_burst(limit, state, stored, free_us, at_us, units, receipt, cancel)
  end
  local returned_us = floor(receipt.mark * (returned / cost))
  local refunded_us = floor(receipt.mark * ((returned + units) / cost)) - returned_us
  local shut_until_us = served_us + receipt.mark - returned_us
  if free_us ~= shut_until_us then return nil end -- Others came after it, and a reservation of theirs may lie ahead.
  local cooled = min(limit.store, stored + units)
  refunded_us = min(refunded_us, free_us - at_us, shut_until_us - at_us)
  if units < cost then
    refunded_us = min(refunded_us, (price(limit, cooled, min(units, cooled), units)))
  end
  if refunded_us <= 0 then return nil end
  return new_state(limit, cooled, free_us - refunded_us, at_us, 0, 0)
end

function M.surcharge(limit, state, now_us, units)
  local at_us, refunded_total_us, claims_us = as_at(state, now_us), 0, 0
  if state and state.claims_us > now_us and limit.warmup_us == 0 then
    refunded_total_us, claims_us = state.refunded_total_us, state.claims_us
  end
  local stored, free_us = permits_at(limit, state, at_us)
  units = min(units, floor(HORIZON_US / limit.coldest_unit_us))
  local spent = min(units, stored)
  local price_us = price(limit, stored, spent, units)
  stored, free_us = stored - spent, max(free_us, min(free_us + price_us, at_us + HORIZON_US))
  if refunded_total_us > 0 then claims_us = max(claims_us, free_us + fill_us(limit, stored) + 1) end
  return new_state(limit, stored, free_us, at_us, refunded_total_us, claims_us)
end

--@gateway
function M.quota(limit, arithmetic)
  local rate, saved_us = limit.rate, limit.warmup_us > 0 and 0 or floor(limit.shape * 1000000 + 0.5)
  local window = max(1, arithmetic.ceil_div(max(saved_us, math.ceil(limit.interval_us)), 1000000))
  return {
    quota = max(1, floor(rate * window)), window = window, per_second = rate == floor(rate) and rate or nil,
    fresh = 1, interval_us = max(1, floor(limit.interval_us)),
  }
end

-- Returns whether a limit can have this rate: no unit may take more than 366 days, even when cold.
local function is_valid_rate(rate, warmup_us, shape)
  if not (1 / HORIZON_US < rate / 1000000 and rate / 1000000 <= 1) then return false end
  local interval_us = 1000000 / rate
  return floor(HORIZON_US / (warmup_us > 0 and interval_us * shape or interval_us)) >= 1
end

-- Returns the numbers of a limit of the largest rate that, taken `count` times, is no more than this limit's.
function M.divide_rate(limit, count, arithmetic)
  -- A period of that many seconds, so that amounts are as large as rates are small.
  local period, amount = count * 1000000, limit.rate * 1000000
  if not arithmetic.stored_us(period * 1000000) then return nil end
  while true do
    local rate = amount / period
    if amount < 0.0001 or not is_valid_rate(rate, limit.warmup_us, limit.shape) then return nil end
    if arithmetic.at_most(rate, count, limit.rate, 1) then
      return { arithmetic.float_text(rate), limit.warmup_us, arithmetic.float_text(limit.shape) }
    end
    amount = arithmetic.next_below(amount)
  end
end

function M.max_state_bytes(limit, arithmetic)
  local digit_count, max_double_digits = arithmetic.digit_count, 24
  return max_double_digits + 16 + 16 + digit_count(limit.rate) + digit_count(limit.warmup_us)
    + digit_count(limit.shape) + 5
end

return M
