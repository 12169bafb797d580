-- The sliding log: the twin of algorithms/sliding_log.py, which tells its story and its laws.
--
-- The storage keeps the ring itself. A state is the numbers about it and entry(number), which returns the instant of
-- a unit; decide and refund put into the state what is to be written, and the storage writes it when it saves:
--   append                  so many units at newest_us, the last ones before head
--   cut, cut_count          these units are erased and the newer ones move down,
--   cut, cut_count, fill_us      or the older ones move up and as many at fill_us come in at the tail

local floor, max, min = math.floor, math.max, math.min
local M = { width = 2, keep = "log" }

local HORIZON_US = 366 * 86400 * 1000000
local MAX_UNITS_BEFORE = 10000
local PUSHED_OUT = 4503599627370496 -- is added to ahead_us if units were pushed out that a refund would bring back
local NEVER_US = -9007199254740992
local SWING_US = 100000

function M.limit(argv, i)
  return { amount = tonumber(argv[i]), period_us = tonumber(argv[i + 1]) }
end

function M.ttl_ms(limit, state, now_us)
  local last_us = max(state.newest_us + limit.period_us, state.stamp_us)
  return math.ceil((last_us - state.ahead_us % PUSHED_OUT - now_us) / 1000) + SWING_US / 1000
end

-- Returns the first of the units low <= number < high that is later than the instant; high if none is.
local function first_after(instant_us, entry, low, high)
  local probe, step = low, 1
  while probe < high and entry(probe) <= instant_us do
    low = probe + 1
    probe = probe + step
    step = step + step
  end
  if probe < high then high = probe end
  while low < high do
    local middle = floor((low + high) / 2)
    if entry(middle) <= instant_us then low = middle + 1 else high = middle end
  end
  return low
end

-- Returns the log's time, by how much it is ahead of the clock (more than stored if the clock was set back), by how
-- much it was when stored, and PUSHED_OUT or 0.
local function log_times(state, now_us)
  local pushed_out = state.ahead_us >= PUSHED_OUT and PUSHED_OUT or 0
  local stored_ahead_us = state.ahead_us - pushed_out
  local time_us, ahead_us = max(now_us + stored_ahead_us, state.stamp_us), stored_ahead_us
  if time_us - now_us - ahead_us > SWING_US then ahead_us = time_us - now_us end
  return time_us, ahead_us, stored_ahead_us, pushed_out
end

-- Returns the log as of now: head, tail, newest_us, its time, how far that is ahead, PUSHED_OUT or 0, its size and
-- entry; empty once the last unit has left.
local function current_log(limit, state, now_us)
  if not state then return 0, 0, 0, now_us, 0, 0 end
  local time_us, ahead_us, stored_ahead_us, pushed_out = log_times(state, now_us)
  if state.newest_us + limit.period_us > time_us then
    return state.head, state.tail, state.newest_us, time_us, ahead_us, pushed_out, state.size, state.entry
  end
  local swings = time_us - now_us - stored_ahead_us <= SWING_US
  return 0, 0, 0, swings and time_us - stored_ahead_us or now_us, 0, 0
end

function M.decide(limit, state, now_us, cost, patience_us)
  local amount, period_us = limit.amount, limit.period_us
  local head, tail, newest_us, time_us, ahead_us, pushed_out, size, entry = current_log(limit, state, now_us)
  local due_us = newest_us > time_us and newest_us or time_us
  local last = head - amount + (cost > 0 and cost or 1) - 1
  if last >= tail and last < head then
    local leaves_us = entry(last) + period_us
    if leaves_us > due_us then due_us = leaves_us end
    if leaves_us <= time_us then tail = last + 1 end
  end
  local wait_us = due_us > time_us and due_us - now_us - ahead_us or 0
  local passes = cost > 0 and cost <= amount
    and (wait_us == 0 or (patience_us >= 0 and wait_us <= patience_us and wait_us <= HORIZON_US))
  local remaining = 0
  if passes or newest_us <= time_us then
    if head > 0 then tail = first_after(time_us - period_us, entry, tail, head) end
    if wait_us == 0 or not passes then remaining = max(0, amount - (head - tail)) end
  end
  if passes then
    head = head + cost
    if wait_us > 0 and head - amount - MAX_UNITS_BEFORE > tail then
      tail, pushed_out = head - amount - MAX_UNITS_BEFORE, PUSHED_OUT
    elseif wait_us == 0 then
      pushed_out = 0
    end
    if wait_us == 0 then remaining = remaining - cost end
    return { 1, remaining, 0, due_us + period_us - now_us - ahead_us, wait_us, now_us, due_us },
      { size = size, entry = entry, head = head, tail = tail, newest_us = due_us, stamp_us = time_us,
        ahead_us = ahead_us + pushed_out, append = cost }
  end
  local allowed = (cost == 0 and wait_us == 0) and 1 or 0
  local reset_us = head > 0 and newest_us + period_us - now_us - ahead_us or 0
  local outcome = { allowed, remaining, cost > amount and -1 or wait_us, reset_us, 0, now_us, 0 }
  if not state or head == 0 or ahead_us + pushed_out == state.ahead_us then return outcome, state end
  -- The clock was set back behind the log: from here on its time goes on. It forgets no unit, for another limit may
  -- count it.
  return outcome, { size = size, entry = entry, head = head, tail = state.tail, newest_us = newest_us,
    stamp_us = time_us, ahead_us = ahead_us + pushed_out }
end

--@refund
-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(limit, state, now_us, units, receipt, cancel)
  if not state then return nil end
  local period_us, mark_us, entry = limit.period_us, receipt.mark, state.entry
  local time_us, ahead_us, _, pushed_out = log_times(state, now_us)
  if mark_us + period_us <= time_us or (cancel and mark_us < time_us) then return nil end
  if state.newest_us + period_us <= time_us then return nil end
  if mark_us - receipt.at_us - receipt.delay_us > ahead_us + SWING_US then return nil end
  local head, tail, newest_us = state.head, state.tail, state.newest_us
  local stop = first_after(mark_us, entry, tail, head)
  units = min(units, receipt.cost - receipt.returned, stop - first_after(mark_us - 1, entry, tail, stop))
  if units <= 0 then return nil end
  local cut, fill_us = stop - units, nil
  if pushed_out > 0 and newest_us > time_us then
    fill_us = cut > tail and entry(tail) or stop < head and entry(stop) or max(0, newest_us - period_us)
  end
  if stop == head then newest_us = cut > tail and entry(cut - 1) or fill_us or NEVER_US end
  if not fill_us then head = head - units end
  if newest_us <= time_us then pushed_out = 0 end
  return { size = state.size, entry = entry, head = head, tail = tail, newest_us = newest_us, stamp_us = time_us,
    ahead_us = ahead_us + pushed_out, cut = cut, cut_count = units, fill_us = fill_us }
end

function M.surcharge(limit, state, now_us, units)
  local head, tail, newest_us, time_us, ahead_us, pushed_out, size, entry = current_log(limit, state, now_us)
  local due_us, most = max(time_us, newest_us), limit.amount + MAX_UNITS_BEFORE
  if head > 0 then tail = first_after(time_us - limit.period_us, entry, tail, head) end
  units = min(units, most)
  head = head + units
  if head - most > tail then tail, pushed_out = head - most, PUSHED_OUT end
  if due_us <= time_us then pushed_out = 0 end
  return { size = size, entry = entry, head = head, tail = tail, newest_us = due_us, stamp_us = time_us,
    ahead_us = ahead_us + pushed_out, append = units }
end

--@parity
-- Returns stamp:ahead:newest: and the units in the ring, as instant*count.
function M.pack(state)
  local runs, instant_us, count = {}, nil, 0
  for number = state.tail, state.head do
    local unit_us = number < state.head and state.entry(number) or nil
    if unit_us ~= instant_us then
      if count > 0 then runs[#runs + 1] = string.format("%.0f*%.0f", instant_us, count) end
      instant_us, count = unit_us, 0
    end
    count = count + 1
  end
  local numbers = string.format("%.0f:%.0f:%.0f:", state.stamp_us, state.ahead_us, state.newest_us)
  return numbers .. table.concat(runs, ",")
end

--@gateway
-- What a shared dict stores for each unit, and how many timestamps that is.
M.unit_entry = { name = "an instant", timestamps = 1 }

function M.quota(limit, arithmetic) return arithmetic.window_quota(limit.amount, limit.period_us) end

function M.share(limit, units, sharers, arithmetic)
  local period_us = arithmetic.window_us(limit.amount, limit.period_us, sharers, 1)
  return period_us and { units, period_us }
end

return M
