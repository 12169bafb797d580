-- The token bucket: the twin of algorithms/token_bucket.py, which tells its story and its laws.
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

function M.unpack(text, limit)
  local pace = limit and limit.pace or ""
  if pace == "" then
    local tat_us = tonumber(text)
    if tat_us and tat_us >= 0 and tat_us < 1e16 then return tat_us end
  elseif #text > 16 and string.sub(text, -3) == string.sub(pace, 1, 3) then
    local tat_us = tonumber(string.sub(text, 1, -4))
    if tat_us then return tat_us end
  end
  local _, _, kept = exactly()
  return kept(text, pace)
end

function M.pack(state, limit)
  local pace = limit and limit.pace or ""
  if type(state) == "number" then return pace == "" and state or string.format("%.0f%.3s", state, pace) end
  local _, _, _, packed = exactly()
  return packed(state, pace)
end

function M.ttl_ms(limit, state, now_us)
  if type(state) == "number" then return math.ceil((state - now_us) / 1000) + 100 end
  local _, _, _, _, dead_at_us = exactly()
  return math.ceil((dead_at_us(limit, state) - now_us) / 1000)
end

-- What is not simply allowed in whole microseconds. Made only when it is needed: every call of a script makes its
-- functions anew, and that takes longer than deciding.
function exactly()
  local fmod, max, min = math.fmod, math.max, math.min
  local MAX_RETURNS, SWING_US, HORIZON_US, EXACT = 8, 100000, 366 * 86400 * 1000000, 9007199254740992

  local function full_of(state) return type(state) == "number" and { tat_us = state, grains = 0 } or state end

  -- returns and claims_us are nil where nothing was given back. A return: after, end_us, number, us and grains.
  local function state_of(tat_us, grains, stamp_us, note, returns, claims_us)
    if not returns and grains == 0 and not stamp_us and not note then return tat_us end
    return { tat_us = tat_us, grains = grains, stamp_us = stamp_us, note = note, returns = returns,
      claims_us = claims_us }
  end

  local function last_return(returns) return returns and returns[#returns].number or 0 end

  -- The state with other fields.
  local function changed(full, with)
    for _, name in ipairs { "tat_us", "grains", "stamp_us", "note", "returns", "claims_us", "pace" } do
      if with[name] == nil then with[name] = full[name] end
    end
    return with
  end

  local function less(a_us, a, b_us, b) return a_us < b_us or (a_us == b_us and a < b) end

  local function least(a_us, a, b_us, b)
    if less(a_us, a, b_us, b) then return a_us, a end
    return b_us, b
  end

  local function most(a_us, a, b_us, b)
    if less(a_us, a, b_us, b) then return b_us, b end
    return a_us, a
  end

  -- The arithmetic of pairs under one limit.
  local function exact(limit)
    local amount, period_us = limit.amount, limit.period_us
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

    return drain, minus, units_in
  end

  -- A length of time; grains of a limit that was finer than this one are rounded up.
  local function length(limit, us, grains)
    if grains >= limit.amount then return us + 1, 0 end
    return us, grains
  end

  -- The state; a debt moved to now if the clock was set back behind its stamp.
  local function moved(full, now_us)
    local stamp_us = full.stamp_us
    if not stamp_us or stamp_us - now_us <= SWING_US then return full end
    return changed(full, { tat_us = full.tat_us - (stamp_us - now_us), stamp_us = now_us, note = false })
  end

  -- What tells a limit from all others.
  local function numbers(limit) return string.format("%.0f+%.0f+%.0f", limit.amount, limit.period_us, limit.burst) end

  -- Since when the bucket counts as at most full; nil if the state says nothing of that to this limit, now.
  local function noted_since(limit, full, now_us)
    local note = full.note
    return note and note.since_us - now_us <= SWING_US and note.by == numbers(limit) and note.since_us or nil
  end

  -- The least time that a unit takes at this pace.
  local function unit_us(pace)
    local step = fmod(pace - 100, 16)
    return (16 + step) * 2 ^ ((pace - 100 - step) / 16 - 8)
  end

  -- The water now, also of a state in debt, one that the clock was set back behind, or one of another limit.
  local function level(limit, full, now_us)
    local drain = exact(limit)
    full = moved(full, now_us)
    local noted_us = noted_since(limit, full, now_us)
    local since_us = noted_us or now_us
    local us, grains = length(limit, full.tat_us - since_us, full.grains)
    if full.pace then
      local used_us = max(0, full.tat_us - since_us + (full.grains > 0 and 1 or 0))
      us, grains = drain(min(limit.burst, math.ceil(used_us / unit_us(full.pace))))
    elseif not full.stamp_us then
      local full_us, beyond = drain(limit.burst)
      if less(full_us + (noted_us and 0 or SWING_US), beyond, us, grains) then us, grains = full_us, beyond end
    end
    us = us - (now_us - since_us)
    if us < 0 then return 0, 0 end
    return us, grains
  end

  -- Returns the instant that a charge is decided as of: now, or later if the state proves that and the clock swings.
  local function proven(limit, full, now_us, us, grains)
    local drain, minus = exact(limit)
    local full_us, beyond = drain(limit.burst)
    return max(now_us, full.stamp_us or now_us - minus(full_us, beyond, us, grains))
  end

  -- The state after a refusal: the very one, or one that says since when the bucket counts as full.
  local function noted(limit, state, now_us, cost)
    local full = full_of(state)
    local after = moved(full, now_us)
    local needed = after.pace and cost > 0
    if not after.pace and not after.stamp_us then
      local drain = exact(limit)
      local full_us, beyond = drain(limit.burst)
      needed = less(full_us + SWING_US, beyond, length(limit, after.tat_us - now_us, after.grains))
    end
    if needed and not noted_since(limit, after, now_us) then
      after = changed(after, { note = { since_us = now_us, by = numbers(limit) } })
    end
    return after == full and state or after
  end

  -- Grains, a peek, a refusal, a reservation.
  local function decide(limit, state, now_us, cost, patience_us)
    local drain, minus, units_in = exact(limit)
    local full_us, full = drain(limit.burst)
    local before = moved(full_of(state or now_us), now_us)
    local us, grains = level(limit, before, now_us)
    local left_us, left = minus(full_us, full, us, grains)
    local returns, claims_us = before.returns, before.claims_us
    if not returns or claims_us <= now_us then returns, claims_us = nil, nil end
    local marked = last_return(returns) * limit.amount
    local never = cost > limit.burst
    local after_us, after = drain((never or cost == 0) and 1 or cost)
    after_us, after = after_us + us, after + grains
    if after >= limit.amount then after_us, after = after_us + 1, after - limit.amount end
    local room_us, room = minus(full_us, full, after_us, after)
    local wait_us = room_us < 0 and -room_us or 0

    if cost > 0 and not never and (wait_us == 0 or (wait_us <= patience_us and wait_us <= HORIZON_US)) then
      local stamp_us = wait_us > 0 and proven(limit, before, now_us, us, grains) or nil
      -- This charge knows the last refund by its number: so that is kept as long as the charge holds water.
      if returns then claims_us = max(claims_us, now_us + after_us + 1) end
      return { 1, units_in(room_us, room), 0, after_us + (after > 0 and 1 or 0), wait_us, now_us, marked + after },
        state_of(now_us + after_us, after, stamp_us, nil, returns, claims_us)
    end
    local allowed = (cost == 0 and wait_us == 0) and 1 or 0
    local reset_us = us + (grains > 0 and 1 or 0)
    return { allowed, units_in(left_us, left), never and -1 or wait_us, reset_us, 0, now_us, marked + grains },
      state and noted(limit, state, now_us, cost)
  end

  local function added(limit, a_us, a, b_us, b)
    if a + b >= limit.amount then return a_us + b_us + 1, a + b - limit.amount end
    return a_us + b_us, a + b
  end

  local function is_below(a, b) return a.after < b.after or (a.after == b.after and a.end_us <= b.end_us) end

  -- The water given back since, from below this charge: a table as a return is, with after and end_us.
  local function given_below(limit, returns, charge)
    local us, grains = 0, 0
    for _, each in ipairs(returns or {}) do
      if each.number > charge.after and is_below(each, charge) then
        us, grains = added(limit, us, grains, length(limit, each.us, each.grains))
      end
    end
    return us, grains
  end

  -- The refunds with one more; the two oldest as one if they are too many.
  local function with_return(limit, returns, new)
    local after, first = {}, 1
    if returns and #returns == MAX_RETURNS then
      local one, two = returns[1], returns[2]
      local lowest = is_below(one, two) and one or two
      local us, grains = length(limit, one.us, one.grains)
      us, grains = added(limit, us, grains, length(limit, two.us, two.grains))
      after[1] = { after = lowest.after, end_us = lowest.end_us, number = two.number, us = us, grains = grains }
      first = 3
    end
    for i = first, returns and #returns or 0 do after[#after + 1] = returns[i] end
    after[#after + 1] = new
    return after
  end

  -- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
  local function refund(limit, state, now_us, units, receipt, cancel)
    local drain, minus = exact(limit)
    local full = moved(full_of(state or now_us), now_us)
    local mark, returns = fmod(receipt.mark, limit.amount), full.returns
    local charge = {
      after = (receipt.mark - mark) / limit.amount,
      end_us = receipt.at_us + receipt.reset_after_us - (mark > 0 and 1 or 0),
      number = last_return(returns) + 1,
    }
    local full_us, beyond = drain(limit.burst)
    local more = less(full_us + SWING_US, beyond, length(limit, full.tat_us - now_us, full.grains)) -- than it sees
    if full.pace or (more and not full.stamp_us) or charge.after >= charge.number then return nil end
    if noted_since(limit, full, now_us) then return nil end
    now_us = proven(limit, full, now_us, level(limit, full, now_us))
    local us, grains = level(limit, full, now_us)
    local held = receipt.cost - receipt.returned
    local held_us, held_grains = drain(held)
    local back_us, back = drain(min(units, held))
    -- Where the charge's own water ended, seen from now; and where it ends, lower by what was given back since.
    local ended_us, ended = length(limit, charge.end_us - now_us, mark)
    local below_us, below = given_below(limit, returns, charge)
    local end_us, end_ = minus(ended_us, ended, most(below_us, below, drain(receipt.returned)))
    local top = end_us == us and end_ == grains
    -- No reservation was promised for later than a bucketful below the highest water that there was.
    local claims_after_us, ahead_us, ahead = (full.claims_us or now_us) - now_us, us, grains
    if not less(claims_after_us - 1, 0, full_us, beyond) then
      ahead_us, ahead = most(us, grains, claims_after_us, 0)
    end
    ahead_us, ahead = minus(ahead_us, ahead, full_us, beyond)
    if ahead_us < 0 then ahead_us, ahead = 0, 0 end

    -- Whatever was given back, no more can have drained of it than drained in all since it was charged.
    local holds_us, holds = minus(held_us, held_grains, max(0, now_us - receipt.at_us), 0)
    holds_us, holds = most(end_us, end_, holds_us, holds)
    if not cancel then
      back_us, back = least(back_us, back, minus(holds_us, holds, ahead_us, ahead))
    else
      local served_us = minus(ended_us, ended, full_us, beyond)
      if served_us < 0 and receipt.at_us < now_us then return nil end -- it was served
      if not top then
        local promised_us, promised = minus(holds_us, holds, full_us, beyond)
        if promised_us < 0 then promised_us, promised = 0, 0 end
        ahead_us, ahead = minus(ahead_us, ahead, promised_us, promised)
        if ahead_us < 0 then ahead_us, ahead = 0, 0 end
        back_us, back = least(back_us, back, minus(held_us, held_grains, ahead_us, ahead))
      end
    end
    back_us, back = least(back_us, back, us, grains)
    if back_us < 0 or (back_us == 0 and back == 0) then return nil end
    local claims_us = full.claims_us
    local in_part = receipt.returned + units < receipt.cost
    if not top or in_part or less(back_us, back, least(held_us, held_grains, end_us, end_)) then
      -- Something is left above the gap, or of the charge itself.
      if (charge.number + 1) * limit.amount > EXACT then return nil end
      charge.us, charge.grains = back_us, back
      returns = with_return(limit, returns, charge)
      claims_us = max(claims_us or 0, now_us + us + (grains > 0 and 1 or 0))
    end
    us, grains = minus(us, grains, back_us, back)
    local stamp_us = less(full_us, beyond, us, grains) and now_us or nil
    return state_of(now_us + us, grains, stamp_us, full.note, returns, claims_us)
  end

  -- A state as it is kept, with the pace that it was written at, if that is not the limit's own.
  local function kept(text, own)
    local whole, colon, rest = string.match(text, "^(%d+)(:?)(.*)$")
    local written = string.sub(own, 4, 6)
    if not whole or #whole > 19 or (colon == "" and rest ~= "") then return nil end
    if #whole > 16 then whole, written = string.sub(whole, 1, -4), string.sub(whole, -3) end
    local grains, stamp, note, claims, list = string.match(rest, "^(%d*):?(%d*):?([%d+]*):?(%d*):?([%d+,]*)$")
    if not grains then return nil end
    local state = { tat_us = tonumber(whole), grains = tonumber(grains) or 0, stamp_us = tonumber(stamp),
      claims_us = tonumber(claims) }
    local since_us, by = string.match(note, "^(%d+)%+(.+)$")
    if by then state.note = { since_us = tonumber(since_us), by = by } end
    for after, end_us, number, us, part in string.gmatch(list, "(%d+)%+(%d+)%+(%d+)%+(%d+)%+(%d+)") do
      state.returns = state.returns or {}
      state.returns[#state.returns + 1] = { after = tonumber(after), end_us = tonumber(end_us),
        number = tonumber(number), us = tonumber(us), grains = tonumber(part) }
    end
    if own ~= "" and written ~= "" and written ~= string.sub(own, 1, 3) then
      state.pace = written
    elseif rest == "" then
      return state.tat_us
    end
    return state
  end

  local function packed(state, pace)
    local text, gap = string.format("%.0f%.3s", state.tat_us, state.pace or pace), ""
    local note = state.note
    local more = state.grains > 0 or state.stamp_us or note or state.claims_us
    local fields = { more and state.grains or false, state.stamp_us or false, note and note.since_us or false,
      state.claims_us or false }
    for i = 1, 4 do
      if fields[i] then text, gap = string.format("%s%s:%.0f", text, gap, fields[i]), "" else gap = gap .. ":" end
      if i == 3 and note then text = text .. "+" .. note.by end
    end
    local between = gap .. ":"
    for _, each in ipairs(state.returns or {}) do
      local one = string.format("%.0f+%.0f+%.0f+%.0f+%.0f", each.after, each.end_us, each.number, each.us, each.grains)
      text, between = text .. between .. one, ","
    end
    return text
  end

  local function dead_at_us(limit, full)
    local dry_us = full.tat_us + (full.grains > 0 and 1 or 0)
    local since_us = full.note and noted_since(limit, full, full.note.since_us)
    if since_us then
      local us, grains = level(limit, full, since_us)
      dry_us = max(dry_us, since_us + us + (grains > 0 and 1 or 0))
    end
    return max(dry_us, full.claims_us or 0) + SWING_US
  end

  return decide, refund, kept, packed, dead_at_us
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
