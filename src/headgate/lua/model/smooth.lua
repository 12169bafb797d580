-- Smooth pacing: the twin of model/smooth.py, where its story and its laws are told.
--
-- Every expression is spelled as there, in the same order, so that all bits of the doubles agree.

local floor, max, min = math.floor, math.max, math.min
local M = { width = 3 }

local DAY = 86400 * 1000000
local HORIZON_US = 366 * DAY

-- Guava's fields, for the numbers of a limit or for those a state was written under.
local function numbers(rate, warmup_us, shape)
  local interval_us = 1000000 / rate
  local n = { rate = rate, warmup_us = warmup_us, shape = shape, interval_us = interval_us }
  if warmup_us == 0 then
    n.store, n.cool_us, n.fresh, n.dearest_us = shape * rate, interval_us, 0, interval_us
    return n
  end
  local cold_us = interval_us * shape
  n.threshold = 0.5 * warmup_us / interval_us
  n.store = n.threshold + 2.0 * warmup_us / (interval_us + cold_us)
  n.cool_us = warmup_us / n.store
  n.slope = (cold_us - interval_us) / (n.store - n.threshold)
  n.fresh, n.dearest_us = n.store, cold_us
  return n
end

function M.limit(argv, i)
  return numbers(tonumber(argv[i]), tonumber(argv[i + 1]), tonumber(argv[i + 2]))
end

function M.unpack(text)
  local stored, free_us, stamp_us, rate, warmup_us, shape =
    string.match(text, "^([^:]+):([^:]+):([^:]+):([^:]+):([^:]+):([^:]+)$")
  return {
    stored = tonumber(stored), free_us = tonumber(free_us), stamp_us = tonumber(stamp_us),
    rate = tonumber(rate), warmup_us = tonumber(warmup_us), shape = tonumber(shape),
  }
end

function M.pack(state)
  return string.format("%.17g:%.0f:%.0f:%.17g:%.0f:%.17g",
    state.stored, state.free_us, state.stamp_us, state.rate, state.warmup_us, state.shape)
end

local function saved(limit, stored, free_us, now_us)
  return {
    stored = stored, free_us = free_us, stamp_us = now_us,
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
  return math.ceil((state.free_us + life_us - now_us) / 1000) + 0 -- never -0
end

-- What is stored, and from when on it is free.
local function settled(limit, state, now_us)
  if not state then return limit.fresh, now_us end
  local stored, free_us = state.stored, state.free_us
  local same = state.rate == limit.rate and state.warmup_us == limit.warmup_us and state.shape == limit.shape
  local old = same and limit or numbers(state.rate, state.warmup_us, state.shape)
  if state.stamp_us > now_us then free_us = free_us - (state.stamp_us - now_us) end
  if now_us > free_us then
    stored = min(old.store, stored + (now_us - free_us) / old.cool_us)
    free_us = now_us
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
  local stored, free_us = settled(limit, state, now_us)
  return saved(limit, stored, free_us, now_us)
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

function M.decide(limit, state, now_us, cost, patience_us)
  local stored, free_us = settled(limit, state, now_us)
  local wait_us = free_us - now_us
  local never = cost > floor(HORIZON_US / limit.dearest_us)
  if cost > 0 and not never and (wait_us == 0 or wait_us <= patience_us) then
    local spent = min(cost, stored)
    local price_us, mark = price(limit, stored, spent, cost)
    if wait_us + price_us <= HORIZON_US then
      stored, free_us = stored - spent, free_us + price_us
      local shut_us = free_us - now_us
      return { 1, remaining(limit, stored, shut_us), 0, shut_us + fill_us(limit, stored), wait_us, now_us, mark },
        saved(limit, stored, free_us, now_us)
    end
  end
  local allowed = (cost == 0 and wait_us == 0) and 1 or 0
  local reset_us = wait_us + fill_us(limit, stored)
  local verdict = { allowed, remaining(limit, stored, wait_us), never and -1 or wait_us, reset_us, 0, now_us, 0 }
  if not state or state.stamp_us <= now_us then return verdict, state end
  -- The clock stepped back behind the state: it goes on from here.
  return verdict, saved(limit, stored, free_us, now_us)
end

-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  if not state then return nil end
  local stored, free_us = settled(limit, state, now_us)
  local cost, returned = receipt.cost, receipt.returned
  units = min(units, cost - returned)
  local returned_us = floor(receipt.mark * (returned / cost))
  local given_us = floor(receipt.mark * ((returned + units) / cost)) - returned_us
  local served_us = receipt.at_us + receipt.delay_us
  local shut_until_us = served_us + receipt.mark - returned_us
  local end_us = receipt.at_us + receipt.reset_after_us - returned_us
  local warm = limit.warmup_us > 0
  local last
  if warm then
    last = free_us == shut_until_us
  else
    last = free_us + fill_us(limit, stored) == end_us
  end
  if cancel and (served_us < now_us or not last) then return nil end
  local ahead_us = free_us - now_us
  if warm then
    local cooled = min(limit.store, stored + units)
    given_us = min(given_us, ahead_us, shut_until_us - now_us)
    if not last or units < cost then
      given_us = min(given_us, (price(limit, cooled, min(units, cooled), units)))
    end
    if given_us <= 0 then return nil end
    return saved(limit, cooled, free_us - given_us, now_us)
  end
  given_us = min(given_us, end_us - 1 - now_us)
  if given_us <= 0 then return nil end
  local shut_us = min(given_us, ahead_us)
  stored = min(limit.store, stored + (given_us - shut_us) / limit.interval_us)
  return saved(limit, stored, free_us - shut_us, now_us)
end

return M
