-- The fixed window: the twin of model/fixed_window.py, where its story and its laws are told.
--
-- A period of 0 is a calendar: six boundaries follow it, and now must lie in the first, second or third window.
-- If it does not, decide answers { -2, now_us }, and the caller brings the boundaries around that time.

local M = { width = 8 }

function M.limit(argv, i)
  local limit = { amount = tonumber(argv[i]), period_us = tonumber(argv[i + 1]) }
  if limit.period_us == 0 then
    for k = 1, 6 do limit[k] = tonumber(argv[i + 1 + k]) end
  end
  return limit
end

function M.unpack(text)
  local until_us, used, stamp, served, met = string.match(text, "^(%d+):(%d+):(%d+):?(%d*):?(%d*)$")
  local stamp_us = tonumber(stamp)
  return {
    until_us = tonumber(until_us), used = tonumber(used), stamp_us = stamp_us, served_us = tonumber(served) or stamp_us,
    met_us = tonumber(met) or 0,
  }
end

function M.pack(state)
  local text = string.format("%.0f:%.0f:%.0f", state.until_us, state.used, state.stamp_us)
  if state.met_us > 0 then return string.format("%s:%.0f:%.0f", text, state.served_us, state.met_us) end
  return state.served_us == state.stamp_us and text or string.format("%s:%.0f", text, state.served_us)
end

function M.ttl_ms(_, state, now_us)
  return state.used > 0 and math.ceil((state.until_us - now_us) / 1000) + 100 or 0
end

local SWING_US = 100000

-- The instant that a charge is judged as at: now, or the stamp if the clock swings.
local function as_at(state, now_us)
  if not state or state.stamp_us <= now_us or state.stamp_us > now_us + SWING_US then return now_us end
  return state.used > 0 and state.stamp_us or now_us
end

local function written(until_us, used, stamp_us, served_us, met_us)
  return { until_us = until_us, used = used, stamp_us = stamp_us, served_us = served_us, met_us = met_us or 0 }
end

-- The windows around one instant, as functions; nil if that lies outside of the calendar.
local function windows(limit, at_us)
  local period_us, first_us, place = limit.period_us, nil, nil
  if period_us > 0 then
    first_us = at_us - math.fmod(at_us, period_us)
  else
    for k = 1, 3 do
      if limit[k] <= at_us and at_us < limit[k + 1] then place, first_us = k, limit[k] end
    end
  end
  if not first_us then return nil end

  -- The start of the window that lies so many windows ahead of the current one.
  local function start_us(ahead) return place and limit[place + ahead] or first_us + ahead * period_us end

  -- How many windows after the current one the instant lies; 0 if it lies in that one, or before.
  local function windows_ahead(instant_us)
    local ahead, end_us = 0, start_us(1)
    if instant_us < end_us then return 0 end
    if not place then
      return (instant_us - end_us - math.fmod(instant_us - end_us, period_us)) / period_us + 1
    end
    while ahead < 2 and start_us(ahead + 1) <= instant_us do ahead = ahead + 1 end
    return ahead
  end

  -- The state, moved along with a clock that was set back: into the window that is as far ahead as it was.
  local function moved(state)
    if not state or state.stamp_us <= at_us then return state end
    -- Of a calendar only the windows around now are known: so it was in the next one, or in a later one.
    local ahead = state.served_us > state.stamp_us and 1 or 0
    if not place then
      local stamped_us = state.stamp_us - math.fmod(state.stamp_us, period_us)
      ahead = (state.served_us - math.fmod(state.served_us, period_us) - stamped_us) / period_us
    end
    return written(start_us(ahead + 1), state.used, at_us, ahead > 0 and start_us(ahead) or at_us)
  end

  -- The tail among this limit's windows, also of another limit: its end, its units, how many windows ahead.
  local function tail(state)
    if not state or state.until_us <= at_us then return start_us(1), 0, 0 end
    local ahead, used = windows_ahead(state.served_us), state.used
    local tail_us = start_us(ahead + 1)
    if state.met_us > 0 and tail_us ~= state.until_us and ahead == 0 and state.met_us < first_us then used = 0 end
    return tail_us, math.min(used, limit.amount), ahead
  end

  return start_us, moved, tail, place
end

-- A peek, a refusal, a reservation, a calendar, a tail that is not the current window.
local function wait(limit, state, now_us, cost, patience_us)
  local amount, at_us = limit.amount, as_at(state, now_us)
  local start_us, moved, tail, place = windows(limit, at_us)
  if not start_us then return { -2, at_us }, state end
  state = moved(state)
  local until_us, used, ahead = tail(state)
  local window, after, wait_us = ahead, used + (cost > 0 and cost or 1), 0
  if after > amount then window, after = ahead + 1, cost end
  if window > 0 then wait_us = start_us(window) - now_us end
  local horizon_us = 366 * 86400 * 1000000

  if cost > 0 and cost <= amount and (window == 0
    or (wait_us <= patience_us and wait_us <= horizon_us and (not place or window <= 2))) then
    local end_us = start_us(window + 1)
    return { 1, window == 0 and amount - after or 0, 0, end_us - now_us, wait_us, now_us, end_us },
      written(end_us, after, at_us, window > 0 and now_us + wait_us or at_us)
  end
  local reply = {
    (cost == 0 and wait_us == 0) and 1 or 0, ahead == 0 and amount - used or 0, cost <= amount and wait_us or -1,
    used > 0 and until_us - now_us or 0, 0, now_us, until_us,
  }
  if state and cost > 0 and used > 0 and ahead == 0 and until_us ~= state.until_us and state.met_us == 0 then
    state = written(state.until_us, state.used, state.stamp_us, state.served_us, at_us)
  end
  return reply, state
end

function M.decide(limit, state, now_us, cost, patience_us)
  local period_us = limit.period_us
  if period_us > 0 and cost > 0 then
    local at_us, room = as_at(state, now_us), limit.amount - cost
    local end_us = at_us - math.fmod(at_us, period_us) + period_us
    if state then
      if state.until_us == end_us then room = room - state.used elseif state.until_us > at_us then room = -1 end
    end
    if room >= 0 then
      return { 1, room, 0, end_us - now_us, 0, now_us, end_us },
        written(end_us, limit.amount - room, at_us, at_us)
    end
  end
  return wait(limit, state, now_us, cost, patience_us)
end

--@refund
-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  local at_us = as_at(state, now_us)
  local start_us, moved, tail = windows(limit, at_us)
  local given = math.min(units, receipt.cost - receipt.returned)
  if not state or not start_us or given <= 0 then return nil end
  if receipt.mark ~= state.until_us or receipt.mark <= now_us then return nil end
  if cancel and receipt.at_us + receipt.delay_us < now_us then return nil end
  state = moved(state)
  local _, _, ahead = tail(state)
  local used = state.used - given
  if used <= 0 and ahead > 0 then
    return written(start_us(ahead), limit.amount, at_us, ahead > 1 and start_us(ahead - 1) or at_us)
  end
  return written(state.until_us, math.max(0, used), state.stamp_us, state.served_us, state.met_us)
end

return M
