-- The fixed window: the twin of algorithms/fixed_window.py, which tells its story and its laws.
--
-- A period of 0 is a calendar: six boundaries follow it, and now must lie in the first, second or third window.
-- If it does not, decide returns { -2, now_us }, and the caller tries again with the boundaries around that time.

local M = { width = 8, has_edges = true }

function M.limit(argv, i)
  local limit = { amount = tonumber(argv[i]), period_us = tonumber(argv[i + 1]) }
  if limit.period_us == 0 then
    for k = 1, 6 do limit[k] = tonumber(argv[i + 1 + k]) end
  end
  return limit
end

function M.unpack(text)
  local until_us, used, stamp, served = string.match(text, "^(%d+):(%d+):(%d+):?(%d*)$")
  if not stamp or #until_us > 16 or #used > 16 or #stamp > 16 then return nil end
  local stamp_us = tonumber(stamp)
  return {
    until_us = tonumber(until_us), used = tonumber(used), stamp_us = stamp_us, served_us = tonumber(served) or stamp_us,
  }
end

function M.pack(state)
  local text = string.format("%.0f:%.0f:%.0f", state.until_us, state.used, state.stamp_us)
  return state.served_us == state.stamp_us and text or string.format("%s:%.0f", text, state.served_us)
end

function M.ttl_ms(_, state, now_us) return math.ceil((state.until_us - now_us) / 1000) + 100 end

local SWING_US = 100000
local FULL = 1e15 -- the units of a window that counts as full, under any limit

-- Returns the instant that a charge is decided as of: now, or the stamp if the clock swings.
local function as_at(state, now_us)
  if not state or state.stamp_us <= now_us or state.stamp_us > now_us + SWING_US then return now_us end
  return state.stamp_us
end

local function new_state(until_us, used, stamp_us, served_us)
  return { until_us = until_us, used = used, stamp_us = stamp_us, served_us = served_us }
end

-- Returns the windows around one instant, as functions; nil if that lies outside of the calendar.
local function windows(limit, at_us)
  local period_us, first_us, index = limit.period_us, nil, nil
  if period_us > 0 then
    first_us = at_us - math.fmod(at_us, period_us)
  else
    for k = 1, 3 do
      if limit[k] <= at_us and at_us < limit[k + 1] then index, first_us = k, limit[k] end
    end
  end
  if not first_us then return nil end

  -- Returns the start of the window that lies so many windows ahead of the current one.
  local function start_us(ahead) return index and limit[index + ahead] or first_us + ahead * period_us end

  -- Returns the state, moved along with a clock that was set back: into the window that is as far ahead as it was.
  local function follow_clock(state)
    if not state or state.stamp_us <= at_us then return state end
    -- Of a calendar only the windows around now are known: so it was in the next one, or in a later one.
    local ahead = state.served_us > state.stamp_us and 1 or 0
    if not index then
      local stamped_us = state.stamp_us - math.fmod(state.stamp_us, period_us)
      ahead = (state.served_us - math.fmod(state.served_us, period_us) - stamped_us) / period_us
    end
    return new_state(start_us(ahead + 1), state.used, at_us, ahead > 0 and start_us(ahead) or at_us)
  end

  -- Returns the tail among this limit's windows, also of a state of another limit: how many windows ahead it is, its
  -- units, when the last of them are served, and when they stop counting.
  local function tail(state)
    if not state or state.until_us <= at_us or state.served_us < first_us then return 0, 0, at_us, start_us(1) end
    local ahead, served_us = 0, state.served_us
    if index then
      while ahead < 2 and start_us(ahead + 1) <= served_us do ahead = ahead + 1 end
    else
      ahead = (served_us - math.fmod(served_us, period_us) - first_us) / period_us
    end
    local expires_us = math.min(state.until_us, start_us(ahead + 1))
    return ahead, math.min(state.used, limit.amount), math.max(at_us, served_us), expires_us
  end

  return start_us, follow_clock, tail, index
end

-- Decides a peek, a refusal, a reservation, a calendar, a tail in another window.
local function decide_general(limit, state, now_us, cost, patience_us)
  local amount, at_us = limit.amount, as_at(state, now_us)
  local start_us, follow_clock, tail, index = windows(limit, at_us)
  if not start_us then return { -2, at_us }, state end
  state = follow_clock(state)
  local window, used, served_us, expires_us = tail(state)
  local remaining = served_us > at_us and 0 or amount - used
  local after, wait_us = used + (cost > 0 and cost or 1), 0
  if after > amount then
    -- The next window, or the rest of this one if the units are another limit's, whose window ends in it.
    if expires_us == start_us(window + 1) then window = window + 1 end
    after, served_us = cost, expires_us
  end
  if served_us > at_us then wait_us = served_us - now_us end
  local horizon_us = 366 * 86400 * 1000000

  if cost > 0 and cost <= amount and (wait_us == 0 or (wait_us <= patience_us and wait_us <= horizon_us))
    and (not index or window <= 2) then
    local end_us = start_us(window + 1)
    return { 1, wait_us == 0 and amount - after or 0, 0, end_us - now_us, wait_us, now_us, end_us },
      new_state(end_us, after, at_us, served_us)
  end
  return {
    (cost == 0 and wait_us == 0) and 1 or 0, remaining, cost <= amount and wait_us or -1,
    used > 0 and expires_us - now_us or 0, 0, now_us, expires_us,
  }, state
end

function M.decide(limit, state, now_us, cost, patience_us)
  local period_us = limit.period_us
  if period_us > 0 and cost > 0 then
    local at_us, remaining = as_at(state, now_us), limit.amount - cost
    local start_us = at_us - math.fmod(at_us, period_us)
    local end_us = start_us + period_us
    if state and state.until_us > at_us then
      local is_current = state.until_us == end_us and state.served_us >= start_us and state.served_us <= at_us
      remaining = is_current and remaining - state.used or -1
    end
    if remaining >= 0 then
      return { 1, remaining, 0, end_us - now_us, 0, now_us, end_us },
        new_state(end_us, limit.amount - remaining, at_us, at_us)
    end
  end
  return decide_general(limit, state, now_us, cost, patience_us)
end

--@refund
-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  local refunded, served_us = math.min(units, receipt.cost - receipt.returned), receipt.at_us + receipt.delay_us
  if not state or refunded <= 0 or receipt.mark ~= state.until_us or receipt.mark <= now_us then return nil end
  if cancel and served_us < now_us then return nil end
  local at_us = as_at(state, now_us)
  local start_us, follow_clock, tail = windows(limit, at_us)
  if not start_us then return nil end
  state = follow_clock(state)
  local ahead = tail(state)
  -- Another limit's window may end with this one, but a charge of it was served before this one began.
  if served_us + SWING_US < start_us(ahead) then return nil end
  local used = (state.used == FULL and limit.amount or state.used) - refunded
  if used <= 0 and ahead > 0 then
    -- A window of another limit: the part of this one before it counts as full.
    if state.served_us > start_us(ahead) then return new_state(state.served_us, FULL, at_us, start_us(ahead)) end
    return new_state(start_us(ahead), FULL, at_us, ahead > 1 and start_us(ahead - 1) or at_us)
  end
  return new_state(state.until_us, math.max(0, used), state.stamp_us, state.served_us)
end

function M.surcharge(limit, state, now_us, units, receipt)
  local at_us = as_at(state, now_us)
  local start_us, follow_clock, tail = windows(limit, at_us)
  if not start_us then return nil end
  state = follow_clock(state)
  local ahead, used, served_us = tail(state)
  -- Reservations lie ahead, so this window counts as full already.
  if ahead > 0 and math.max(at_us, receipt.at_us + receipt.delay_us) < start_us(ahead) then return nil end
  if used > 0 then used = state.used end -- all of them, also those beyond the amount
  if used < FULL then used = math.min(used + units, FULL - 1) end
  return new_state(start_us(ahead + 1), used, at_us, served_us)
end

--@gateway
local CALENDAR_WINDOW_S = { day = 86400, week = 7 * 86400, month = 31 * 86400, year = 366 * 86400 }

function M.quota(limit, arithmetic, calendar)
  local amount = limit.amount
  if calendar then return { quota = amount, window = CALENDAR_WINDOW_S[calendar.unit], fresh = amount } end
  return arithmetic.window_quota(amount, limit.period_us)
end

function M.share(limit, units, sharers, arithmetic)
  if limit.period_us == 0 then return { units, 0, 0, 0, 0, 0, 0, 0 } end
  local period_us = arithmetic.window_us(limit.amount, limit.period_us, sharers, 1)
  return period_us and { units, period_us, 0, 0, 0, 0, 0, 0 }
end

function M.max_state_bytes(limit, arithmetic) return 16 + 1 + arithmetic.digit_count(limit.amount) + 1 + 16 end

return M
