-- The leaky bucket: the twin of algorithms/leaky_bucket.py, where its story and its laws are told.
--
-- Water is in thousandths of a unit, time in milliseconds. Products are taken apart so that each stays below
-- 2^53; one that does not is compared only with numbers that do.

local floor, ceil, fmod, max, min = math.floor, math.ceil, math.fmod, math.max, math.min
local M = { width = 3 }

local HORIZON_US = 366 * 86400 * 1000000
local DEEPEST = 2 ^ 52
local LONGEST_LOCKOUT_MS = 120000

-- What drains in that many milliseconds, rounded down.
local function drained(limit, ms)
  local rest = fmod(ms, 1000)
  return (ms - rest) / 1000 * limit.rate + floor(rest * limit.rate / 1000)
end

-- The same, rounded up.
local function filled(limit, ms)
  local rest = fmod(ms, 1000)
  return (ms - rest) / 1000 * limit.rate + ceil(rest * limit.rate / 1000)
end

-- The milliseconds that water takes to drain, rounded by `round`.
local function drain_ms(limit, water, round)
  local rest = fmod(water, limit.rate)
  return (water - rest) / limit.rate * 1000 + round(rest * 1000 / limit.rate)
end

-- The milliseconds since the state's own, as nginx sees them.
local function since(state, now_ms)
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
    prompt = delay < 0 and 2 ^ 53 or delay + 1000,
    most = min(DEEPEST, capacity + rate * (HORIZON_US / 1000000)),
  }
end

function M.unpack(text)
  local water, last_ms, given, claims_ms = string.match(text, "^(%d+):(%d+):?(%d*):?(%d*)$")
  if not water or #water > 16 or #last_ms > 16 or #given > 16 or #claims_ms > 16 then return nil end
  return {
    water = tonumber(water), last_ms = tonumber(last_ms), given = tonumber(given) or 0,
    claims_ms = tonumber(claims_ms) or 0,
  }
end

function M.pack(state)
  if state.given == 0 then return string.format("%.0f:%.0f", state.water, state.last_ms) end
  return string.format("%.0f:%.0f:%.0f:%.0f", state.water, state.last_ms, state.given, state.claims_ms)
end

local function dead_at_us(limit, state)
  return max(state.last_ms + drain_ms(limit, min(state.water, limit.most), ceil), state.claims_ms) * 1000
end

-- The excess, and above it what was given back before.
local function mark_of(limit, excess, given)
  local mark = excess + given * 2 * limit.capacity
  if excess < 2 * limit.capacity and mark < DEEPEST then return mark end
  return excess + DEEPEST
end

function M.ttl_ms(limit, state, now_us)
  return ceil((dead_at_us(limit, state) - now_us) / 1000) + 100
end

function M.decide(limit, state, now_us, cost, patience_us)
  local capacity, now_ms = limit.capacity, floor(now_us / 1000)
  local before = state
  state = state or { water = 0, last_ms = now_ms, given = 0, claims_ms = 0 }
  local stored, last_ms = min(state.water, limit.most), state.last_ms
  local given, claims_ms = state.given, state.claims_ms
  if claims_ms <= now_ms then given, claims_ms = 0, 0 end
  local ms = since(state, now_ms)
  local water = max(0, stored - drained(limit, ms))
  if ms > 0 then last_ms = now_ms end
  if state.last_ms - now_ms > LONGEST_LOCKOUT_MS then
    state = { water = water, last_ms = now_ms, given = given, claims_ms = claims_ms }
    stored, before = water, state
  end

  local never = cost > capacity / 1000
  local pour = (never or cost == 0) and 1000 or cost * 1000
  local after = water + pour
  local room_us = 0
  if after > capacity then
    room_us = (state.last_ms + drain_ms(limit, stored + pour - capacity, ceil)) * 1000 - now_us
  end
  local wait_us = room_us
  if cost > 0 and not never then
    local delay_us = 0
    if after > limit.prompt then delay_us = drain_ms(limit, after - limit.prompt, floor) * 1000 end
    local passes = room_us == 0
    if patience_us >= 0 then
      wait_us = max(room_us, delay_us)
      passes = wait_us <= patience_us and wait_us <= HORIZON_US and after <= limit.most
    end
    if passes then
      local reset_us = (last_ms + drain_ms(limit, after, ceil)) * 1000 - now_us
      local remaining = max(0, floor((capacity - after) / 1000))
      local mark = mark_of(limit, after - 1000, given)
      -- This charge knows what was given back before: so that is kept as long as the charge holds water.
      if given > 0 then claims_ms = max(claims_ms, floor((now_us + reset_us) / 1000) + 1) end
      return { 1, remaining, 0, reset_us, max(room_us, delay_us), now_us, mark },
        { water = after, last_ms = last_ms, given = given, claims_ms = claims_ms }
    end
  end
  local allowed = (cost == 0 and room_us == 0) and 1 or 0
  local reset_us = max(0, (state.last_ms + drain_ms(limit, stored, ceil)) * 1000 - now_us)
  local remaining = max(0, floor((capacity - water) / 1000))
  local mark = cost > 0 and after - 1000 or mark_of(limit, after - 1000, given)
  return { allowed, remaining, never and -1 or wait_us, reset_us, 0, now_us, mark }, before
end

-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  if not state or (cancel and receipt.at_us + receipt.delay_us < now_us) then return nil end
  local capacity, given, claims_ms = limit.capacity, state.given, state.claims_ms
  local given_before, excess = 0, receipt.mark - DEEPEST
  if excess < 0 then
    excess = fmod(receipt.mark, 2 * capacity)
    given_before = (receipt.mark - excess) / (2 * capacity)
  end
  if given_before > given then return nil end
  local water, last_ms = min(state.water, limit.most), state.last_ms
  local now_ms = floor(now_us / 1000)
  local level = water - drained(limit, since(state, now_ms))
  -- Where the charge's own water ends: where it was poured to, less what was given back since and all that can have
  -- drained.
  local since_ms = max(0, max(now_ms, last_ms) - floor(receipt.at_us / 1000))
  local given_since = max(given - given_before, receipt.returned * 1000)
  local ends = excess + 1000 - given_since - drained(limit, since_ms)
  local held = (receipt.cost - receipt.returned) * 1000
  local back = min(units * 1000, held)
  -- No reservation was promised for later than a bucketful below the highest water that there was.
  local highest = max(level, filled(limit, claims_ms - now_ms))
  -- Whatever was given back, no more can have drained of it than drained in all since it was charged.
  local holds = max(ends, held - filled(limit, since_ms))
  if not cancel then
    back = min(back, holds - max(0, highest - capacity))
  elseif ends ~= level then
    back = min(back, held - max(0, highest - max(min(limit.prompt, capacity), holds)))
  end
  back = min(back, holds, level)
  if back <= 0 then return nil end
  local in_part = receipt.returned + units < receipt.cost
  if ends ~= level or in_part or back < min(held, ends) then -- Something is left above the gap, or of the charge.
    given = given + back
    claims_ms = max(claims_ms, max(now_ms, last_ms) + drain_ms(limit, level, ceil))
    if (given + 1) * 2 * capacity > DEEPEST then return nil end
  end
  return { water = water - back, last_ms = last_ms, given = given, claims_ms = claims_ms }
end

return M
