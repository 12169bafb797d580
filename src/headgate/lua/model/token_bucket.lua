-- The token bucket: the twin of model/token_bucket.py, where its story and its laws are told.
--
-- A double holds whole numbers to 2^53 only, so lengths of time are pairs here: whole microseconds, and grains
-- (1/amount of a microsecond) beyond them. math.fmod is exact where % is not.
--
-- A state is a number where that says it all: the instant of running dry. Most are, and a table costs time.

local M = { width = 4 }

-- The pace is a text: "" of a limit that its counts are named after, for it cannot change; else its three digits, and
-- three more of the limit that the counts are named after, if they are named after one.
function M.limit(argv, i)
  -- Adding nothing makes a number of a text, and is cheaper than a call.
  return { amount = argv[i] + 0, period_us = argv[i + 1] + 0, burst = argv[i + 2] + 0, pace = argv[i + 3] }
end

local exactly

function M.unpack(text, limit, now_us)
  local pace = limit and limit.pace or ""
  if pace == "" then
    local tat_us = tonumber(text)
    if tat_us and tat_us < 1e16 then return tat_us end
  elseif #text > 16 and string.sub(text, -3) == string.sub(pace, 1, 3) then
    local tat_us = tonumber(string.sub(text, 1, -4))
    if tat_us then return tat_us end
  end
  local _, _, kept = exactly()
  return kept(text, limit, pace, now_us)
end

function M.pack(state, limit)
  local pace = limit and limit.pace or ""
  if type(state) == "number" then return pace == "" and state or string.format("%.0f%.3s", state, pace) end
  if not state.stamp_us then return string.format("%.0f%.3s:%.0f", state.tat_us, pace, state.grains) end
  return string.format("%.0f%.3s:%.0f:%.0f", state.tat_us, pace, state.grains, state.stamp_us)
end

function M.ttl_ms(_, state, now_us)
  if type(state) == "number" then return math.ceil((state - now_us) / 1000) end
  return math.ceil((state.tat_us - now_us + (state.grains > 0 and 1 or 0)) / 1000)
end

-- What is not simply allowed in whole microseconds. Made only when it is needed: every call of a script makes its
-- functions anew, and that takes longer than deciding.
function exactly()
  local function state_of(tat_us, grains, stamp_us)
    if grains == 0 and not stamp_us then return tat_us end
    return { tat_us = tat_us, grains = grains, stamp_us = stamp_us }
  end

  -- The arithmetic of pairs under one limit.
  local function exact(limit)
    local amount, period_us, fmod = limit.amount, limit.period_us, math.fmod
    local part = fmod(period_us, amount)
    local whole = (period_us - part) / amount

    -- The time that `units` take to drain.
    local function drain(units)
      local grains = units * part
      local rest = fmod(grains, amount)
      return units * whole + (grains - rest) / amount, rest
    end

    local function minus(a_us, a, b_us, b)
      if a < b then return a_us - b_us - 1, a - b + amount end
      return a_us - b_us, a - b
    end

    -- How many whole units drain in that time: estimated in doubles, then put right.
    local function units_in(us, grains)
      if us < 0 then return 0 end
      local units = math.floor((us + grains / amount) / period_us * amount)
      local need_us, need = drain(units)
      while need_us > us or (need_us == us and need > grains) do
        units = units - 1
        need_us, need = drain(units)
      end
      need_us, need = drain(units + 1)
      while need_us < us or (need_us == us and need <= grains) do
        units = units + 1
        need_us, need = drain(units + 1)
      end
      return units
    end

    -- The water in the bucket now.
    local function level(state, now_us)
      if not state then return 0, 0 end
      local us, grains, stamp_us = state, 0, nil
      if type(state) ~= "number" then us, grains, stamp_us = state.tat_us, state.grains, state.stamp_us end
      us = us - now_us
      if stamp_us and stamp_us > now_us then us = us - (stamp_us - now_us) end
      if grains >= amount then us, grains = us + 1, 0 end
      if us < 0 then return 0, 0 end
      local full_us, full = drain(limit.burst)
      if not stamp_us and (us > full_us or (us == full_us and grains > full)) then return full_us, full end
      return us, grains
    end

    return drain, minus, units_in, level
  end

  -- Grains, a peek, a refusal, a reservation.
  local function decide(limit, state, now_us, cost, patience_us)
    local drain, minus, units_in, level = exact(limit)
    local full_us, full = drain(limit.burst)
    local us, grains = level(state, now_us)
    local left_us, left = minus(full_us, full, us, grains)
    local before = state
    local stored_us, stored = state, 0
    if state and type(state) ~= "number" then stored_us, stored = state.tat_us, state.grains end
    if stored >= limit.amount then stored_us, stored = stored_us + 1, 0 end
    if state and (stored_us - now_us > us or (stored_us - now_us == us and stored > grains)) then
      -- The clock stepped back behind the state, or the limit shrank: it starts to drain from here.
      before = state_of(now_us + us, grains, left_us < 0 and now_us or nil)
    end
    if cost > limit.burst then
      return { 0, units_in(left_us, left), -1, us + (grains > 0 and 1 or 0), 0, now_us, grains }, before
    end
    local after_us, after = drain(cost > 0 and cost or 1)
    after_us, after = after_us + us, after + grains
    if after >= limit.amount then after_us, after = after_us + 1, after - limit.amount end
    local room_us, room = minus(full_us, full, after_us, after)
    local wait_us = room_us < 0 and -room_us or 0
    local horizon_us = 366 * 86400 * 1000000

    if cost > 0 and (wait_us == 0 or (wait_us <= patience_us and wait_us <= horizon_us)) then
      return { 1, units_in(room_us, room), 0, after_us + (after > 0 and 1 or 0), wait_us, now_us, after },
        state_of(now_us + after_us, after, wait_us > 0 and now_us or nil)
    end
    local allowed = (cost == 0 and wait_us == 0) and 1 or 0
    return { allowed, units_in(left_us, left), wait_us, us + (grains > 0 and 1 or 0), 0, now_us, grains }, before
  end

  -- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
  local function refund(limit, state, now_us, units, receipt, cancel)
    local drain, minus, _, level = exact(limit)
    local function less(a_us, a, b_us, b) return a_us < b_us or (a_us == b_us and a < b) end
    local function least(a_us, a, b_us, b)
      if less(a_us, a, b_us, b) then return a_us, a end
      return b_us, b
    end
    local full_us, full = drain(limit.burst)
    local us, grains = level(state, now_us)
    local held = receipt.cost - receipt.returned
    local given_us, given = drain(math.min(units, held))
    -- Where the charge's own water ends, seen from now.
    local until_us, until_ = receipt.at_us + receipt.reset_after_us - now_us, receipt.mark
    if until_ > 0 then until_us = until_us - 1 end
    if until_ >= limit.amount then until_us, until_ = until_us + 1, 0 end
    until_us, until_ = minus(until_us, until_, drain(receipt.returned))

    if cancel then
      local served_us, served = minus(until_us, until_, full_us, full)
      if less(served_us, served, receipt.at_us - now_us, 0) then served_us, served = receipt.at_us - now_us, 0 end
      if served_us < 0 then return nil end
      local built_us, built = minus(us, grains, full_us, full)
      if built_us < 0 then built_us, built = 0, 0 end
      built_us, built = minus(built_us, built, served_us, served)
      if built_us < 0 then built_us, built = 0, 0 end
      local own_us, own = drain(held)
      own_us, own = minus(own_us, own, built_us, built)
      given_us, given = least(given_us, given, own_us, own)
    else
      given_us, given = least(given_us, given, until_us, until_)
    end
    given_us, given = least(given_us, given, us, grains)
    if given_us < 0 or (given_us == 0 and given == 0) then return nil end
    us, grains = minus(us, grains, given_us, given)
    return state_of(now_us + us, grains, less(full_us, full, us, grains) and now_us or nil)
  end

  -- A state as it is kept. One that was written at another pace is carried over in units.
  local function kept(text, limit, own, now_us)
    local whole, beyond, stamp = string.match(text, "^(%d+):?(%d*):?(%d*)$")
    local pace = string.sub(own, 4, 6)
    if #whole > 16 then whole, pace = string.sub(whole, 1, -4), string.sub(whole, -3) end
    local tat_us, grains, stamp_us = tonumber(whole), tonumber(beyond) or 0, tonumber(stamp)
    if own == "" or pace == "" or pace == string.sub(own, 1, 3) then return state_of(tat_us, grains, stamp_us) end
    if stamp_us and stamp_us > now_us then tat_us = tat_us - (stamp_us - now_us) end
    local used_us = tat_us - now_us + (grains > 0 and 1 or 0)
    if used_us <= 0 then return now_us end
    local step = math.fmod(pace - 100, 16)
    local unit_us = (16 + step) * 2 ^ ((pace - 100 - step) / 16 - 8)
    local drain = exact(limit)
    local us, rest = drain(math.min(limit.burst, math.ceil(used_us / unit_us)))
    return state_of(now_us + us, rest)
  end

  return decide, refund, kept
end

local decide_exactly

function M.decide(limit, state, now_us, cost, patience_us)
  local period_us, level_us = limit.period_us, 0
  if limit.amount == 1 and cost > 0 and (not state or type(state) == "number") then
    if state and state > now_us then level_us = state - now_us end
    local full_us = limit.burst * period_us
    local room_us = full_us - level_us - cost * period_us
    if room_us >= 0 then
      local after_us = level_us + cost * period_us
      return { 1, (room_us - math.fmod(room_us, period_us)) / period_us, 0, after_us, 0, now_us, 0 }, now_us + after_us
    elseif patience_us < 0 and level_us <= full_us and cost <= limit.burst then
      local left_us = full_us - level_us
      return { 0, (left_us - math.fmod(left_us, period_us)) / period_us, -room_us, level_us, 0, now_us, 0 }, state
    end
  end
  decide_exactly = decide_exactly or exactly()
  return decide_exactly(limit, state, now_us, cost, patience_us)
end

--@refund
function M.refund(limit, state, now_us, units, receipt, cancel)
  local _, refund = exactly()
  return refund(limit, state, now_us, units, receipt, cancel)
end

return M
