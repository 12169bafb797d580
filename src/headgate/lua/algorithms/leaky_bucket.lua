-- The leaky bucket: the twin of algorithms/leaky_bucket.py, which tells its story and its laws.
--
-- Water is in thousandths of a unit, time in milliseconds. Products are taken apart so that each stays below
-- 2^53; one that does not is compared only with numbers that do.

local floor, ceil, fmod, max, min = math.floor, math.ceil, math.fmod, math.max, math.min
local M = { width = 3 }

local HORIZON_US = 366 * 86400 * 1000000
local MAX_WATER = 2 ^ 52
local MAX_LOCKOUT_MS = 120000

-- Returns what drains in that many milliseconds, rounded down.
local function drained(limit, ms)
  local rest = fmod(ms, 1000)
  return (ms - rest) / 1000 * limit.rate + floor(rest * limit.rate / 1000)
end

-- Returns the milliseconds that water takes to drain, rounded by `round`.
local function drain_ms(limit, water, round)
  local rest = fmod(water, limit.rate)
  return (water - rest) / limit.rate * 1000 + round(rest * 1000 / limit.rate)
end

-- Returns the milliseconds since the state was written, as nginx sees them.
local function elapsed_ms(state, now_ms)
  local ms = now_ms - state.last_ms
  if ms >= 0 then return ms end
  return ms < -60000 and 1 or 0
end

function M.limit(argv, i)
  local rate, delay = tonumber(argv[i]), tonumber(argv[i + 2])
  local capacity = tonumber(argv[i + 1]) + 1000
  return {
    rate = rate,
    capacity = capacity,
    undelayed_water = delay < 0 and 2 ^ 53 or delay + 1000,
    max_water = min(MAX_WATER, capacity + rate * (HORIZON_US / 1000000)),
  }
end

function M.unpack(text)
  local water, last_ms, refunded_total, claims_ms = string.match(text, "^(%d+):(%d+):?(%d*):?(%d*)$")
  if not water or #water > 16 or #last_ms > 16 or #refunded_total > 16 or #claims_ms > 16 then return nil end
  return {
    water = tonumber(water), last_ms = tonumber(last_ms), refunded_total = tonumber(refunded_total) or 0,
    claims_ms = tonumber(claims_ms) or 0,
  }
end

function M.pack(state)
  if state.refunded_total == 0 then return string.format("%.0f:%.0f", state.water, state.last_ms) end
  return string.format("%.0f:%.0f:%.0f:%.0f", state.water, state.last_ms, state.refunded_total, state.claims_ms)
end

local function dead_at_us(limit, state)
  return max(state.last_ms + drain_ms(limit, min(state.water, limit.max_water), ceil), state.claims_ms) * 1000
end

-- Returns the mark of a charge: the excess, and above it what was given back before.
local function pack_mark(limit, excess, refunded_total)
  local mark = excess + refunded_total * 2 * limit.capacity
  if excess < 2 * limit.capacity and mark < MAX_WATER then return mark end
  return excess + MAX_WATER
end

function M.ttl_ms(limit, state, now_us)
  return ceil((dead_at_us(limit, state) - now_us) / 1000) + 100
end

-- Returns the numbers of a state as of now: water, last_ms, refunded_total, claims_ms.
local function current(limit, state, now_ms)
  local last_ms, refunded_total, claims_ms = state.last_ms, state.refunded_total, state.claims_ms
  if claims_ms <= now_ms then refunded_total, claims_ms = 0, 0 end
  local ms = elapsed_ms(state, now_ms)
  if ms > 0 then last_ms = now_ms end
  return max(0, min(state.water, limit.max_water) - drained(limit, ms)), last_ms, refunded_total, claims_ms
end

function M.decide(limit, state, now_us, cost, patience_us)
  local capacity, now_ms = limit.capacity, floor(now_us / 1000)
  local before = state
  state = state or { water = 0, last_ms = now_ms, refunded_total = 0, claims_ms = 0 }
  local stored = min(state.water, limit.max_water)
  local water, last_ms, refunded_total, claims_ms = current(limit, state, now_ms)
  if state.last_ms - now_ms > MAX_LOCKOUT_MS then
    state = { water = water, last_ms = now_ms, refunded_total = refunded_total, claims_ms = claims_ms }
    stored, before = water, state
  end

  local too_large = cost > capacity / 1000
  local pour = (too_large or cost == 0) and 1000 or cost * 1000
  local after = water + pour
  local room_us = 0
  if after > capacity then
    room_us = (state.last_ms + drain_ms(limit, stored + pour - capacity, ceil)) * 1000 - now_us
  end
  local wait_us = room_us
  if cost > 0 and not too_large then
    local delay_us = 0
    if after > limit.undelayed_water then delay_us = drain_ms(limit, after - limit.undelayed_water, floor) * 1000 end
    local passes = room_us == 0
    if patience_us >= 0 then
      wait_us = max(room_us, delay_us)
      passes = wait_us <= patience_us and wait_us <= HORIZON_US and after <= limit.max_water
    end
    if passes then
      local reset_us = (last_ms + drain_ms(limit, after, ceil)) * 1000 - now_us
      local remaining = max(0, floor((capacity - after) / 1000))
      local mark = pack_mark(limit, after - 1000, refunded_total)
      -- The mark of this charge refers to what was given back before: so that is kept as long as it holds water.
      if refunded_total > 0 then claims_ms = max(claims_ms, floor((now_us + reset_us) / 1000) + 1) end
      return { 1, remaining, 0, reset_us, max(room_us, delay_us), now_us, mark },
        { water = after, last_ms = last_ms, refunded_total = refunded_total, claims_ms = claims_ms }
    end
  end
  local allowed = (cost == 0 and room_us == 0) and 1 or 0
  local reset_us = max(0, (state.last_ms + drain_ms(limit, stored, ceil)) * 1000 - now_us)
  local remaining = max(0, floor((capacity - water) / 1000))
  local mark = cost > 0 and after - 1000 or pack_mark(limit, after - 1000, refunded_total)
  return { allowed, remaining, too_large and -1 or wait_us, reset_us, 0, now_us, mark }, before
end

--@refund
-- Returns what drains in that many milliseconds, rounded up.
local function filled(limit, ms)
  local rest = fmod(ms, 1000)
  return (ms - rest) / 1000 * limit.rate + ceil(rest * limit.rate / 1000)
end

-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  if not state or (cancel and receipt.at_us + receipt.delay_us < now_us) then return nil end
  local capacity, refunded_total, claims_ms = limit.capacity, state.refunded_total, state.claims_ms
  local refunded_before, excess = 0, receipt.mark - MAX_WATER
  if excess < 0 then
    excess = fmod(receipt.mark, 2 * capacity)
    refunded_before = (receipt.mark - excess) / (2 * capacity)
  end
  if refunded_before > refunded_total then return nil end
  local water, last_ms = min(state.water, limit.max_water), state.last_ms
  local now_ms = floor(now_us / 1000)
  local level = water - drained(limit, elapsed_ms(state, now_ms))
  -- Where the charge's own water ends: the level it was poured to, less what was given back since and all that can have
  -- drained.
  local since_ms = max(0, max(now_ms, last_ms) - floor(receipt.at_us / 1000))
  local refunded_since = max(refunded_total - refunded_before, receipt.returned * 1000)
  local end_ = excess + 1000 - refunded_since - drained(limit, since_ms)
  local outstanding = (receipt.cost - receipt.returned) * 1000
  local refunded = min(units * 1000, outstanding)
  -- No reservation was promised for later than a bucketful below the highest water that there was.
  local highest = max(level, filled(limit, claims_ms - now_ms))
  -- Whatever was given back, no more can have drained of it than drained in all since it was charged.
  local undrained = max(end_, outstanding - filled(limit, since_ms))
  if not cancel then
    refunded = min(refunded, undrained - max(0, highest - capacity))
  elseif end_ ~= level then
    local promised = max(min(limit.undelayed_water, capacity), undrained)
    refunded = min(refunded, outstanding - max(0, highest - promised))
  end
  refunded = min(refunded, undrained, level)
  if refunded <= 0 then return nil end
  local is_partial = receipt.returned + units < receipt.cost
  -- Something remains above the gap, or of the charge.
  if end_ ~= level or is_partial or refunded < min(outstanding, end_) then
    refunded_total = refunded_total + refunded
    claims_ms = max(claims_ms, max(now_ms, last_ms) + drain_ms(limit, level, ceil))
    if (refunded_total + 1) * 2 * capacity > MAX_WATER then return nil end
  end
  return { water = water - refunded, last_ms = last_ms, refunded_total = refunded_total, claims_ms = claims_ms }
end

function M.surcharge(limit, state, now_us, units)
  local now_ms = floor(now_us / 1000)
  state = state or { water = 0, last_ms = now_ms, refunded_total = 0, claims_ms = 0 }
  local water, last_ms, refunded_total, claims_ms = current(limit, state, now_ms)
  local after = max(water, min(water + units * 1000, limit.max_water))
  if refunded_total > 0 then claims_ms = max(claims_ms, last_ms + drain_ms(limit, after, ceil) + 1) end
  return { water = after, last_ms = last_ms, refunded_total = refunded_total, claims_ms = claims_ms }
end

--@gateway
local CENTURY_S = 36500 * 86400

function M.quota(limit, arithmetic)
  local rate, quota = limit.rate, limit.capacity / 1000
  local per_second = math.fmod(rate, 1000) == 0 and rate / 1000 or nil
  return { quota = quota, window = arithmetic.ceil_div(limit.capacity, rate), per_second = per_second, fresh = quota }
end

function M.share(limit, units, sharers, arithmetic)
  local rate, delay = arithmetic.floor_div(limit.rate, sharers), -1
  if rate < 1 or units > CENTURY_S / 1000 * rate then return nil end -- too slow to be counted
  if limit.undelayed_water < 2 ^ 53 then
    delay = max(0, arithmetic.floor_div(min(limit.undelayed_water, limit.capacity) / 1000, sharers) - 1) * 1000
  end
  return { rate, (units - 1) * 1000, delay }
end

function M.max_state_bytes(limit, arithmetic) return arithmetic.digit_count(limit.capacity) + 1 + 13 end

return M
