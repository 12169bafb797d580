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
  local until_us, used, ahead = string.match(text, "^(%d+):(%d+):?(%d*)$")
  return { until_us = tonumber(until_us), used = tonumber(used), ahead = tonumber(ahead) or 0 }
end

function M.pack(state)
  if state.ahead == 0 then return string.format("%.0f:%.0f", state.until_us, state.used) end
  return string.format("%.0f:%.0f:%.0f", state.until_us, state.used, state.ahead)
end

function M.ttl_ms(_, state, now_us)
  return state.used > 0 and math.ceil((state.until_us - now_us) / 1000) or 0
end

-- The tail's end (nil if now lies outside of the calendar), the units in it, and how many windows it lies ahead;
-- then the end of the current window, and in a calendar which of the boundaries that is.
local function settled(limit, state, now_us)
  local period_us, end_us, place, ahead = limit.period_us, nil, nil, 0
  if period_us > 0 then
    end_us = now_us - math.fmod(now_us, period_us) + period_us
  else
    for k = 1, 3 do
      if limit[k] <= now_us and now_us < limit[k + 1] then place, end_us = k + 1, limit[k + 1] end
    end
  end
  if not end_us or not state or state.until_us <= now_us then return end_us, 0, 0, end_us, place end
  local until_us, furthest, tail_us = state.until_us, state.ahead, end_us
  if place then
    while tail_us < until_us and ahead < furthest and ahead < 2 do
      ahead = ahead + 1
      tail_us = limit[place + ahead]
    end
  elseif until_us > end_us then
    local beyond = math.fmod(until_us - end_us, period_us)
    ahead = math.min(furthest, (until_us - end_us - beyond) / period_us + (beyond > 0 and 1 or 0))
    tail_us = end_us + ahead * period_us
  end
  return tail_us, math.min(state.used, limit.amount), ahead, end_us, place
end

-- What is not simply allowed: a peek, a refusal, a reservation, a calendar, a tail that is not the current window.
local function wait(limit, state, now_us, cost, patience_us)
  local amount, period_us = limit.amount, limit.period_us
  local until_us, used, ahead, end_us, place = settled(limit, state, now_us)
  if not until_us then return { -2, now_us }, state end
  local window, after, wait_us = ahead, used + (cost > 0 and cost or 1), 0
  if after > amount then window, after = ahead + 1, cost end
  if window > 0 then
    wait_us = (place and limit[place + window - 1] or end_us + (window - 1) * period_us) - now_us
  end
  local horizon_us = 366 * 86400 * 1000000

  if cost > 0 and cost <= amount and (wait_us == 0
    or (wait_us <= patience_us and wait_us <= horizon_us and (not place or window <= 2))) then
    end_us = place and limit[place + window] or end_us + window * period_us
    return { 1, window == 0 and amount - after or 0, 0, end_us - now_us, wait_us, now_us, end_us },
      { until_us = end_us, used = after, ahead = window }
  end
  local reply = {
    (cost == 0 and wait_us == 0) and 1 or 0, ahead == 0 and amount - used or 0, cost <= amount and wait_us or -1,
    used > 0 and until_us - now_us or 0, 0, now_us, until_us,
  }
  if not state or state.until_us <= until_us then return reply, state end
  return reply, { until_us = until_us, used = used, ahead = ahead }
end

function M.decide(limit, state, now_us, cost, patience_us)
  local period_us = limit.period_us
  if period_us > 0 and cost > 0 then
    local end_us, room = now_us - math.fmod(now_us, period_us) + period_us, limit.amount - cost
    if state then
      if state.until_us == end_us then room = room - state.used elseif state.until_us > now_us then room = -1 end
    end
    if room >= 0 then
      return { 1, room, 0, end_us - now_us, 0, now_us, end_us },
        { until_us = end_us, used = limit.amount - room, ahead = 0 }
    end
  end
  return wait(limit, state, now_us, cost, patience_us)
end

--@refund
-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  local until_us, _, ahead, end_us, place = settled(limit, state, now_us)
  local given = math.min(units, receipt.cost - receipt.returned)
  if not state or not until_us or given <= 0 then return nil end
  if receipt.mark ~= state.until_us or receipt.mark <= now_us then return nil end
  if cancel and receipt.at_us + receipt.delay_us < now_us then return nil end
  local used = state.used - given
  if used <= 0 and ahead > 0 then
    local before_us = place and limit[place + ahead - 1] or end_us + (ahead - 1) * limit.period_us
    return { until_us = before_us, used = limit.amount, ahead = ahead - 1 }
  end
  return { until_us = until_us, used = math.max(0, used), ahead = ahead }
end

return M
