-- The token bucket: the twin of algorithms/token_bucket.py, which tells its story and its laws. The file is long for
-- one reason: it follows its twin law by law.
--
-- A double holds whole numbers to 2^53 only, so lengths of time are pairs here: whole microseconds, and grains
-- (1/amount of a microsecond) beyond them. math.fmod is exact where % is not.
--
-- A state is a number, the instant of running dry, where that is all. Most are, and a table costs time.

local M = { width = 4 }

-- The pace is text: "" if the counts are named after this limit, for it cannot change; else its three digits, followed
-- by those of the limit that the counts are named after, if there is one.
function M.limit(argv, i)
  -- Adding 0 converts text to a number, and is cheaper than a call.
  return { amount = argv[i] + 0, period_us = argv[i + 1] + 0, burst = argv[i + 2] + 0, pace = argv[i + 3] }
end

local exact_functions

function M.unpack(text, limit)
  local pace = limit and limit.pace or ""
  if pace == "" then
    local tat_us = tonumber(text)
    if tat_us and tat_us >= 0 and tat_us < 1e16 then return tat_us end
  elseif #text > 16 and string.sub(text, -3) == string.sub(pace, 1, 3) then
    local tat_us = tonumber(string.sub(text, 1, -4))
    if tat_us then return tat_us end
  end
  local _, _, unpack_exactly = exact_functions()
  return unpack_exactly(text, pace)
end

function M.pack(state, limit)
  local pace = limit and limit.pace or ""
  if type(state) == "number" then return pace == "" and state or string.format("%.0f%.3s", state, pace) end
  local _, _, _, pack_exactly = exact_functions()
  return pack_exactly(state, pace)
end

function M.ttl_ms(limit, state, now_us)
  if type(state) == "number" then return math.ceil((state - now_us) / 1000) + 100 end
  local _, _, _, _, dead_at_us = exact_functions()
  return math.ceil((dead_at_us(limit, state) - now_us) / 1000)
end

-- Returns the functions for all that is not simply allowed in whole microseconds. Created only when they are needed:
-- every call of a script creates its functions anew, and that takes longer than deciding.
function exact_functions()
  local fmod, max, min = math.fmod, math.max, math.min
  local MAX_REFUNDS, SWING_US, HORIZON_US, EXACT = 8, 100000, 366 * 86400 * 1000000, 9007199254740992

  local function details_of(state) return type(state) == "number" and { tat_us = state, grains = 0 } or state end

  -- refunds and claims_us are nil where nothing was given back. A refund: after, end_us, number, us and grains.
  local function state_of(tat_us, grains, stamp_us, note, refunds, claims_us)
    if not refunds and grains == 0 and not stamp_us and not note then return tat_us end
    return { tat_us = tat_us, grains = grains, stamp_us = stamp_us, note = note, refunds = refunds,
      claims_us = claims_us }
  end

  local function last_refund(refunds) return refunds and refunds[#refunds].number or 0 end

  -- Returns the state with other values of these fields.
  local function with_fields(details, fields)
    for _, name in ipairs { "tat_us", "grains", "stamp_us", "note", "refunds", "claims_us", "pace" } do
      if fields[name] == nil then fields[name] = details[name] end
    end
    return fields
  end

  local function less(a_us, a, b_us, b) return a_us < b_us or (a_us == b_us and a < b) end

  local function min_pair(a_us, a, b_us, b)
    if less(a_us, a, b_us, b) then return a_us, a end
    return b_us, b
  end

  local function max_pair(a_us, a, b_us, b)
    if less(a_us, a, b_us, b) then return b_us, b end
    return a_us, a
  end

  -- Returns the arithmetic of pairs under one limit.
  local function pair_arithmetic(limit)
    local amount, period_us = limit.amount, limit.period_us
    local unit_grains = fmod(period_us, amount)
    local unit_us_whole = (period_us - unit_grains) / amount

    -- Returns the time that `units` take to drain.
    local function drain(units)
      local grains = units * unit_grains
      local rest = fmod(grains, amount)
      return units * unit_us_whole + (grains - rest) / amount, rest
    end

    local function subtract(a_us, a, b_us, b)
      if a < b then return a_us - b_us - 1, a - b + amount end
      return a_us - b_us, a - b
    end

    -- Returns how many whole units drain in that time: estimated in doubles, then corrected.
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

    return drain, subtract, units_in
  end

  -- Returns a length of time; rounds up the grains of a limit that was finer than this one.
  local function length(limit, us, grains)
    if grains >= limit.amount then return us + 1, 0 end
    return us, grains
  end

  -- Returns the state; a debt moved to now if the clock was set back behind its stamp.
  local function follow_clock(details, now_us)
    local stamp_us = details.stamp_us
    if not stamp_us or stamp_us - now_us <= SWING_US then return details end
    return with_fields(details, { tat_us = details.tat_us - (stamp_us - now_us), stamp_us = now_us, note = false })
  end

  -- Returns the numbers that identify a limit.
  local function id_of(limit) return string.format("%.0f+%.0f+%.0f", limit.amount, limit.period_us, limit.burst) end

  -- Returns since when the bucket counts as at most full; nil if there is no note that applies to this limit now.
  local function noted_since_us(limit, details, now_us)
    local note = details.note
    return note and note.since_us - now_us <= SWING_US and note.limit_id == id_of(limit) and note.since_us or nil
  end

  -- Returns the least time that a unit takes at this pace.
  local function unit_us(pace)
    local step = fmod(pace - 100, 16)
    return (16 + step) * 2 ^ ((pace - 100 - step) / 16 - 8)
  end

  -- Returns the water now, also of a state in debt, after the clock was set back, or of another limit.
  local function level(limit, details, now_us)
    local drain = pair_arithmetic(limit)
    details = follow_clock(details, now_us)
    local noted_us = noted_since_us(limit, details, now_us)
    local since_us = noted_us or now_us
    local us, grains = length(limit, details.tat_us - since_us, details.grains)
    if details.pace then
      local used_us = max(0, details.tat_us - since_us + (details.grains > 0 and 1 or 0))
      us, grains = drain(min(limit.burst, math.ceil(used_us / unit_us(details.pace))))
    elseif not details.stamp_us then
      local full_us, beyond = drain(limit.burst)
      if less(full_us + (noted_us and 0 or SWING_US), beyond, us, grains) then us, grains = full_us, beyond end
    end
    us = us - (now_us - since_us)
    if us < 0 then return 0, 0 end
    return us, grains
  end

  -- Returns the instant that a charge is decided as of: now, or later if the state proves that and the clock swings.
  local function proven_us(limit, details, now_us, us, grains)
    local drain, subtract = pair_arithmetic(limit)
    local full_us, beyond = drain(limit.burst)
    return max(now_us, details.stamp_us or now_us - subtract(full_us, beyond, us, grains))
  end

  -- Returns the state after a refusal: the same, or one that notes since when the bucket counts as full.
  local function note_refusal(limit, state, now_us, cost)
    local details = details_of(state)
    local after = follow_clock(details, now_us)
    local needed = after.pace and cost > 0
    if not after.pace and not after.stamp_us then
      local drain = pair_arithmetic(limit)
      local full_us, beyond = drain(limit.burst)
      needed = less(full_us + SWING_US, beyond, length(limit, after.tat_us - now_us, after.grains))
    end
    if needed and not noted_since_us(limit, after, now_us) then
      after = with_fields(after, { note = { since_us = now_us, limit_id = id_of(limit) } })
    end
    return after == details and state or after
  end

  local function add(limit, a_us, a, b_us, b)
    if a + b >= limit.amount then return a_us + b_us + 1, a + b - limit.amount end
    return a_us + b_us, a + b
  end

  -- Decides grains, a peek, a refusal, a reservation.
  local function decide(limit, state, now_us, cost, patience_us)
    local drain, subtract, units_in = pair_arithmetic(limit)
    local full_us, beyond = drain(limit.burst)
    local before = follow_clock(details_of(state or now_us), now_us)
    local us, grains = level(limit, before, now_us)
    local free_before_us, free_before = subtract(full_us, beyond, us, grains)
    local refunds, claims_us = before.refunds, before.claims_us
    if not refunds or claims_us <= now_us then refunds, claims_us = nil, nil end
    local mark_base = last_refund(refunds) * limit.amount
    local too_large = cost > limit.burst
    local after_us, after = drain((too_large or cost == 0) and 1 or cost)
    after_us, after = add(limit, after_us, after, us, grains)
    local free_after_us, free_after = subtract(full_us, beyond, after_us, after)
    local wait_us = free_after_us < 0 and -free_after_us or 0

    if cost > 0 and not too_large and (wait_us == 0 or (wait_us <= patience_us and wait_us <= HORIZON_US)) then
      local stamp_us = wait_us > 0 and proven_us(limit, before, now_us, us, grains) or nil
      -- The mark of this charge has the number of the last refund: so that is kept as long as it holds water.
      if refunds then claims_us = max(claims_us, now_us + after_us + 1) end
      local reset_us = after_us + (after > 0 and 1 or 0)
      return { 1, units_in(free_after_us, free_after), 0, reset_us, wait_us, now_us, mark_base + after },
        state_of(now_us + after_us, after, stamp_us, nil, refunds, claims_us)
    end
    local allowed = (cost == 0 and wait_us == 0) and 1 or 0
    local reset_us = us + (grains > 0 and 1 or 0)
    local remaining, retry_us = units_in(free_before_us, free_before), too_large and -1 or wait_us
    return { allowed, remaining, retry_us, reset_us, 0, now_us, mark_base + grains },
      state and note_refusal(limit, state, now_us, cost)
  end

  local function is_below(a, b) return a.after < b.after or (a.after == b.after and a.end_us <= b.end_us) end

  -- Returns the water given back since, from below this charge: a table like a refund, with after and end_us.
  local function refunded_below(limit, refunds, charge)
    local us, grains = 0, 0
    for _, each in ipairs(refunds or {}) do
      if each.number > charge.after and is_below(each, charge) then
        us, grains = add(limit, us, grains, length(limit, each.us, each.grains))
      end
    end
    return us, grains
  end

  -- Returns the refunds with one more; merges the two oldest if they are too many.
  local function with_refund(limit, refunds, new)
    local after, first = {}, 1
    if refunds and #refunds == MAX_REFUNDS then
      local first_refund, second_refund = refunds[1], refunds[2]
      local lowest = is_below(first_refund, second_refund) and first_refund or second_refund
      local us, grains = length(limit, first_refund.us, first_refund.grains)
      us, grains = add(limit, us, grains, length(limit, second_refund.us, second_refund.grains))
      after[1] = { after = lowest.after, end_us = lowest.end_us, number = second_refund.number, us = us,
        grains = grains }
      first = 3
    end
    for i = first, refunds and #refunds or 0 do after[#after + 1] = refunds[i] end
    after[#after + 1] = new
    return after
  end

  -- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
  local function refund(limit, state, now_us, units, receipt, cancel)
    local drain, subtract = pair_arithmetic(limit)
    local details = follow_clock(details_of(state or now_us), now_us)
    local mark, refunds = fmod(receipt.mark, limit.amount), details.refunds
    local charge = {
      after = (receipt.mark - mark) / limit.amount,
      end_us = receipt.at_us + receipt.reset_after_us - (mark > 0 and 1 or 0),
      number = last_refund(refunds) + 1,
    }
    local full_us, beyond = drain(limit.burst)
    -- More was used than this limit sees.
    local exceeds = less(full_us + SWING_US, beyond, length(limit, details.tat_us - now_us, details.grains))
    if details.pace or (exceeds and not details.stamp_us) or charge.after >= charge.number then return nil end
    if noted_since_us(limit, details, now_us) then return nil end
    now_us = proven_us(limit, details, now_us, level(limit, details, now_us))
    local us, grains = level(limit, details, now_us)
    local outstanding = receipt.cost - receipt.returned
    local outstanding_us, outstanding_grains = drain(outstanding)
    local refunded_us, refunded = drain(min(units, outstanding))
    -- Where the charge's own water ended, as of now; and where it ends, lower by what was given back since.
    local charged_end_us, charged_end = length(limit, charge.end_us - now_us, mark)
    local below_us, below = refunded_below(limit, refunds, charge)
    local end_us, end_ = subtract(charged_end_us, charged_end, max_pair(below_us, below, drain(receipt.returned)))
    local is_top = end_us == us and end_ == grains
    -- No reservation was promised for later than a bucketful below the highest water that there was.
    local claims_after_us, ahead_us, ahead = (details.claims_us or now_us) - now_us, us, grains
    if not less(claims_after_us - 1, 0, full_us, beyond) then
      ahead_us, ahead = max_pair(us, grains, claims_after_us, 0)
    end
    ahead_us, ahead = subtract(ahead_us, ahead, full_us, beyond)
    if ahead_us < 0 then ahead_us, ahead = 0, 0 end

    -- Whatever was given back, no more can have drained of it than drained in all since it was charged.
    local undrained_us, undrained = subtract(outstanding_us, outstanding_grains, max(0, now_us - receipt.at_us), 0)
    undrained_us, undrained = max_pair(end_us, end_, undrained_us, undrained)
    if not cancel then
      refunded_us, refunded = min_pair(refunded_us, refunded, subtract(undrained_us, undrained, ahead_us, ahead))
    else
      local served_us = subtract(charged_end_us, charged_end, full_us, beyond)
      if served_us < 0 and receipt.at_us < now_us then return nil end -- it was served
      if not is_top then
        local promised_us, promised = subtract(undrained_us, undrained, full_us, beyond)
        if promised_us < 0 then promised_us, promised = 0, 0 end
        ahead_us, ahead = subtract(ahead_us, ahead, promised_us, promised)
        if ahead_us < 0 then ahead_us, ahead = 0, 0 end
        refunded_us, refunded = min_pair(refunded_us, refunded,
          subtract(outstanding_us, outstanding_grains, ahead_us, ahead))
      end
    end
    refunded_us, refunded = min_pair(refunded_us, refunded, us, grains)
    if refunded_us < 0 or (refunded_us == 0 and refunded == 0) then return nil end
    local claims_us = details.claims_us
    local is_partial = receipt.returned + units < receipt.cost
    if not is_top or is_partial
      or less(refunded_us, refunded, min_pair(outstanding_us, outstanding_grains, end_us, end_)) then
      -- Something remains above the gap, or of the charge itself.
      if (charge.number + 1) * limit.amount > EXACT then return nil end
      charge.us, charge.grains = refunded_us, refunded
      refunds = with_refund(limit, refunds, charge)
      claims_us = max(claims_us or 0, now_us + us + (grains > 0 and 1 or 0))
    end
    us, grains = subtract(us, grains, refunded_us, refunded)
    local stamp_us = less(full_us, beyond, us, grains) and now_us or nil
    return state_of(now_us + us, grains, stamp_us, details.note, refunds, claims_us)
  end

  local function surcharge(limit, state, now_us, units)
    local drain = pair_arithmetic(limit)
    local full_us, beyond = drain(limit.burst)
    local before = follow_clock(details_of(state or now_us), now_us)
    local us, grains = level(limit, before, now_us)
    local refunds, claims_us = before.refunds, before.claims_us
    if not refunds or claims_us <= now_us then refunds, claims_us = nil, nil end
    local after_us, after = add(limit, us, grains, drain(min(units, math.floor(EXACT / limit.amount))))
    after_us, after = min_pair(after_us, after, full_us + HORIZON_US, beyond)
    after_us, after = max_pair(us, grains, after_us, after)
    local in_debt = less(full_us, beyond, after_us, after)
    local stamp_us = in_debt and proven_us(limit, before, now_us, us, grains) or nil
    if refunds then claims_us = max(claims_us, now_us + after_us + 1) end
    return state_of(now_us + after_us, after, stamp_us, nil, refunds, claims_us)
  end

  -- Returns the state from its stored form, with the pace that it was written at, if that is not the limit's.
  local function unpack_exactly(text, pace)
    local tat, colon, rest = string.match(text, "^(%d+)(:?)(.*)$")
    local written_pace = string.sub(pace, 4, 6)
    if not tat or #tat > 19 or (colon == "" and rest ~= "") then return nil end
    if #tat > 16 then tat, written_pace = string.sub(tat, 1, -4), string.sub(tat, -3) end
    local grains, stamp, note, claims, refund_list = string.match(rest, "^(%d*):?(%d*):?([%d+]*):?(%d*):?([%d+,]*)$")
    if not grains then return nil end
    local state = { tat_us = tonumber(tat), grains = tonumber(grains) or 0, stamp_us = tonumber(stamp),
      claims_us = tonumber(claims) }
    local since_us, limit_id = string.match(note, "^(%d+)%+(.+)$")
    if limit_id then state.note = { since_us = tonumber(since_us), limit_id = limit_id } end
    for after, end_us, number, us, part in string.gmatch(refund_list, "(%d+)%+(%d+)%+(%d+)%+(%d+)%+(%d+)") do
      state.refunds = state.refunds or {}
      state.refunds[#state.refunds + 1] = { after = tonumber(after), end_us = tonumber(end_us),
        number = tonumber(number), us = tonumber(us), grains = tonumber(part) }
    end
    if pace ~= "" and written_pace ~= "" and written_pace ~= string.sub(pace, 1, 3) then
      state.pace = written_pace
    elseif rest == "" then
      return state.tat_us
    end
    return state
  end

  -- Returns the stored form of a state, with its pace.
  local function pack_exactly(state, pace)
    local text, gap = string.format("%.0f%.3s", state.tat_us, state.pace or pace), ""
    local note = state.note
    local has_fields = state.grains > 0 or state.stamp_us or note or state.claims_us
    local fields = { has_fields and state.grains or false, state.stamp_us or false, note and note.since_us or false,
      state.claims_us or false }
    for i = 1, 4 do
      if fields[i] then text, gap = string.format("%s%s:%.0f", text, gap, fields[i]), "" else gap = gap .. ":" end
      if i == 3 and note then text = text .. "+" .. note.limit_id end
    end
    local between = gap .. ":"
    for _, each in ipairs(state.refunds or {}) do
      local record = string.format("%.0f+%.0f+%.0f+%.0f+%.0f",
        each.after, each.end_us, each.number, each.us, each.grains)
      text, between = text .. between .. record, ","
    end
    return text
  end

  local function dead_at_us(limit, details)
    local dry_us = details.tat_us + (details.grains > 0 and 1 or 0)
    local since_us = details.note and noted_since_us(limit, details, details.note.since_us)
    if since_us then
      local us, grains = level(limit, details, since_us)
      dry_us = max(dry_us, since_us + us + (grains > 0 and 1 or 0))
    end
    return max(dry_us, details.claims_us or 0) + SWING_US
  end

  return decide, refund, unpack_exactly, pack_exactly, dead_at_us, surcharge
end

local decide_exactly

function M.decide(limit, state, now_us, cost, patience_us)
  local period_us, level_us = limit.period_us, 0
  if limit.amount == 1 and cost > 0 and (not state or type(state) == "number") then
    if state and state > now_us then level_us = state - now_us end
    local full_us = limit.burst * period_us
    local free_us = full_us - level_us - cost * period_us
    if free_us >= 0 then
      local after_us = level_us + cost * period_us
      return { 1, (free_us - math.fmod(free_us, period_us)) / period_us, 0, after_us, 0, now_us, 0 }, now_us + after_us
    elseif patience_us < 0 and level_us <= full_us and cost <= limit.burst then
      local free_before_us = full_us - level_us
      local remaining = (free_before_us - math.fmod(free_before_us, period_us)) / period_us
      return { 0, remaining, -free_us, level_us, 0, now_us, 0 }, state
    end
  end
  decide_exactly = decide_exactly or exact_functions()
  return decide_exactly(limit, state, now_us, cost, patience_us)
end

--@refund
function M.refund(limit, state, now_us, units, receipt, cancel)
  local _, refund = exact_functions()
  return refund(limit, state, now_us, units, receipt, cancel)
end

function M.surcharge(limit, state, now_us, units)
  local _, _, _, _, _, surcharge = exact_functions()
  return surcharge(limit, state, now_us, units)
end

--@gateway
local CENTURY_US = 36500 * 86400000000

-- Rounds the window up. A quotient that was rounded down to a whole number is one too few; one that was rounded up to
-- it is right.
function M.quota(limit, arithmetic)
  local amount, period_us, burst = limit.amount, limit.period_us, limit.burst
  local window = math.floor(burst * period_us / (amount * 1000000))
  while not arithmetic.at_most(burst, period_us, window * 1000000, amount) do window = window + 1 end
  return { quota = burst, window = window, per_second = arithmetic.per_second(amount, period_us), fresh = burst }
end

-- Returns the pace of a bucket: sixteen for each doubling of the time that a unit takes, from a sixteenth of a
-- microsecond on.
local function pace_code(unit_us)
  local mantissa, exponent = math.frexp(unit_us)
  return math.max(100, math.min(999, 100 + (exponent + 3) * 16 + math.floor(mantissa * 32) - 16))
end

-- Returns the numbers of a token bucket; nil where Python refuses it, because it could not fill within 100 years, or be
-- written. (Its burst times its amount is exact: both are at most the limit's own.)
local function numbers_of(amount, period_us, burst, arithmetic)
  period_us = arithmetic.stored_us(period_us)
  if amount < 1 or burst < 1 or not period_us then return nil end
  local divisor = arithmetic.gcd(amount, period_us)
  amount, period_us = amount / divisor, period_us / divisor
  if not arithmetic.at_most(burst, period_us, CENTURY_US, amount) then return nil end
  return { amount, period_us, burst, pace_code(period_us / amount) }
end

-- Multiplies the period, rather than dividing the amount: that is exact. If the last unit of a burst makes a bucket too
-- slow to fill, it is omitted; if the period gets too long to be written, the amount is rounded down.
function M.share(limit, units, sharers, arithmetic)
  local amount, period_us, fewer_units = limit.amount, limit.period_us, math.max(1, units - 1)
  return numbers_of(amount, period_us * sharers, units, arithmetic)
    or numbers_of(amount, period_us * sharers, fewer_units, arithmetic)
    or numbers_of(arithmetic.floor_div(amount, sharers), period_us, fewer_units, arithmetic)
end

function M.max_state_bytes(limit, arithmetic) return 16 + 3 + 1 + arithmetic.digit_count(limit.amount) end

-- Returns the digits that states are written at, as a number; and whether states are numbers.
function M.state_pace(limit) return tonumber(string.sub(limit.pace or "", 1, 3)) or 0, limit.amount == 1 end

return M
