-- The sliding window: the twin of algorithms/sliding_window.py, which tells its story and its laws.
--
-- A state is one table: the counts from the oldest at 1 to the tail's at n, beside the names below. Numbers of
-- cells and lengths of time are whole; fmod makes the quotients exact.

local M = { width = 3 }

local MAX_CELLS_BEFORE = 1000
local MAX_AMOUNT = 1e13

local function quotient(a, b) return (a - math.fmod(a, b)) / b end

function M.limit(argv, i)
  return { amount = tonumber(argv[i]), cell_us = tonumber(argv[i + 1]), cells = tonumber(argv[i + 2]) }
end

function M.unpack(text)
  local cell_us, cells, tail, counts, ahead = string.match(text, "^(%d+):(%d+):(%d+):([%d,]+):?(%d*)$")
  if not cell_us or #cell_us > 16 or #cells > 16 or #tail > 16 or #ahead > 16 then return nil end
  local state = {
    cell_us = tonumber(cell_us), cells = tonumber(cells), tail = tonumber(tail), ahead = tonumber(ahead) or 0, n = 0,
  }
  local n = 0
  for count in string.gmatch(counts, "%d+") do
    n = n + 1
    state[n] = tonumber(count)
  end
  state.n = n
  return n > 0 and n <= state.cells + MAX_CELLS_BEFORE and state.tail * state.cell_us < 1e16 and state or nil
end

-- concat writes numbers with 14 digits, and counts have at most that many.
function M.pack(state)
  local counts = table.concat(state, ",", 1, state.n)
  if state.ahead == 0 then
    return string.format("%.0f:%.0f:%.0f:%s", state.cell_us, state.cells, state.tail, counts)
  end
  return string.format("%.0f:%.0f:%.0f:%s:%.0f", state.cell_us, state.cells, state.tail, counts, state.ahead)
end

-- Returns the cell from which on nothing counts any more, not even the tail's place in the queue.
local function end_cell(state)
  for i = state.n, 1, -1 do
    if state[i] > 0 then return state.tail - state.n + i + state.cells end
  end
  return state.tail
end

function M.ttl_ms(_, state, now_us)
  return math.max(0, math.ceil((end_cell(state) * state.cell_us - now_us) / 1000) + 100)
end

local SWING_US = 100000

-- Returns the latest instant that the state proves.
local function stamp_us_of(state) return (state.tail - state.ahead) * state.cell_us end

-- Returns the instant that a charge is decided as of: now, or what the state proves if the clock swings.
local function as_at(state, now_us)
  if not state then return now_us end
  local stamp_us = stamp_us_of(state)
  return stamp_us > now_us and stamp_us <= now_us + SWING_US and stamp_us or now_us
end

-- Returns a copy whose frame, of the limit's cut, ends with `target`, from the first count in use; and the sum of its
-- counts.
local function slide(limit, state, tail, target)
  local copy = { cell_us = limit.cell_us, cells = limit.cells, tail = target, ahead = 0, n = 0 }
  local n, sum = 0, 0
  if state then
    local first = state.n + target - tail - limit.cells + 1
    for i = first > 1 and first or 1, state.n do
      local count = state[i]
      if count > 0 or n > 0 then
        n, sum = n + 1, sum + count
        copy[n] = count
      end
    end
  end
  if n == 0 then
    n, copy[1] = 1, 0
  else
    for _ = 1, target - tail do
      n = n + 1
      copy[n] = 0
    end
  end
  copy.n = n
  return copy, sum
end

-- Returns the frame as one that ends with `cell`, ahead of the current one, after all stored cells that are in the
-- current frame or ahead of it. The state's tail is where the frame's is, if that lies ahead.
local function put_ahead(limit, state, frame, cell, current)
  local tail, cells = frame.tail, limit.cells
  local counts, n = state, math.max(state.n, cells)
  if tail == current then counts, n = frame, cells end
  local length = n + cell - tail
  if length <= cells then return slide(limit, frame, tail, cell) end
  local width = math.min(length, cells + math.min(MAX_CELLS_BEFORE, cell - current))
  local after = { cell_us = limit.cell_us, cells = cells, tail = cell, ahead = cell - current, n = width }
  local shift = counts.n - n + length - width
  for i = 1, width do after[i] = counts[i + shift] or 0 end
  return after
end

-- Returns the same state, unless the clock was set back behind it: then it moves along with the clock.
local function after_refusal(state, now_us)
  if as_at(state, now_us) >= stamp_us_of(state) then return state end
  local after = { cell_us = state.cell_us, cells = state.cells, ahead = state.ahead, n = state.n }
  for i = 1, state.n do after[i] = state[i] end
  after.tail = quotient(now_us, state.cell_us) + state.ahead
  return after
end

local HORIZON_US = 366 * 86400 * 1000000

-- Returns the counts of a state of another cut that have not left, and when its tail starts.
local function changed_entries(limit, state, at_us)
  local cell_us, cells, old_us, entries = limit.cell_us, limit.cells, state.cell_us, {}
  local current = quotient(at_us, cell_us)
  local tail = math.min(state.tail, quotient(at_us, old_us) + state.ahead)
  for i = 1, state.n do
    -- Served by the end of its old cell; a count after the last write is a reservation, served at its start.
    local old = tail - state.n + i
    local served = old <= tail - state.ahead
    local cell = quotient(served and (old + 1) * old_us - 1 or old * old_us, cell_us)
    local leaves_us = math.min((old + state.cells) * old_us, (cell + cells) * cell_us)
    if state[i] > 0 and leaves_us > at_us then
      -- Served units lie in no later cell than now.
      local new_cell = served and math.min(cell, current) or cell
      entries[#entries + 1] = { leaves_us = leaves_us, cell = new_cell, count = state[i] }
    end
  end
  return entries, tail * old_us
end

-- Returns counts of another cut as a state of this limit, up to the cell `target`. As in put_ahead: those that leave
-- before it go before its frame, and leave no earlier than they did.
local function moved_counts(limit, entries, target, current)
  local cell_us, cells = limit.cell_us, limit.cells
  local width = cells + math.min(MAX_CELLS_BEFORE, target - current)
  local after = { cell_us = cell_us, cells = cells, tail = target, ahead = target - current, n = width }
  for i = 1, width do after[i] = 0 end
  for _, entry in ipairs(entries) do
    local leaves_us = entry.leaves_us
    local last = leaves_us > target * cell_us and target or quotient(leaves_us + cell_us - 1, cell_us) - cells
    local index = math.min(entry.cell, last) - target + width
    if index > 0 then after[index] = after[index] + entry.count end
  end
  return after
end

-- Decides every case for a state of another cut.
local function decide_changed(limit, state, now_us, cost, patience_us)
  local amount, cell_us, cells = limit.amount, limit.cell_us, limit.cells
  local at_us = as_at(state, now_us)
  local current = quotient(at_us, cell_us)
  local entries, tail_us = changed_entries(limit, state, at_us)
  local due_us, empty_us, free = math.max(at_us, tail_us), tail_us, amount
  for _, entry in ipairs(entries) do
    empty_us = math.max(empty_us, entry.leaves_us)
    if entry.leaves_us > due_us then free = free - entry.count end
  end

  local remaining = due_us == at_us and math.max(0, free) or 0
  for i = 1, #entries do
    if free >= math.max(1, cost) then break end
    if entries[i].leaves_us > due_us then free, due_us = free + entries[i].count, entries[i].leaves_us end
  end
  local wait_us = due_us > at_us and due_us - now_us or 0

  if cost > 0 and cost <= amount and (wait_us == 0 or (wait_us <= patience_us and wait_us <= HORIZON_US)) then
    local target = wait_us > 0 and quotient(due_us + cell_us - 1, cell_us) or current
    local after = moved_counts(limit, entries, target, current)
    after[after.n] = after[after.n] + cost
    if target == current then after = slide(limit, after, target, target) end
    return { 1, math.max(0, remaining - cost), 0, (target + cells) * cell_us - now_us, wait_us, now_us, target }, after
  end
  local reset_us = empty_us > at_us and empty_us - now_us or 0
  local allowed = (cost == 0 and wait_us == 0) and 1 or 0
  local outcome = { allowed, remaining, cost <= amount and wait_us or -1, reset_us, 0, now_us, current }
  return outcome, reset_us > 0 and after_refusal(state, now_us) or state
end

function M.decide(limit, state, now_us, cost, patience_us)
  local amount, cell_us, cells = limit.amount, limit.cell_us, limit.cells
  if state and (state.cell_us ~= cell_us or state.cells ~= cells) then
    return decide_changed(limit, state, now_us, cost, patience_us)
  end
  local current = quotient(as_at(state, now_us), cell_us)
  local tail = state and math.min(state.tail, current + state.ahead) or current
  local frame, sum = slide(limit, state, tail, math.max(tail, current))
  tail = frame.tail
  local cell, excess = tail, sum + (cost > 0 and cost or 1) - amount
  for i = 1, frame.n do
    if excess <= 0 then break end
    excess = excess - frame[i]
    cell = tail - frame.n + i + cells
  end
  local wait_us = cell > current and cell * cell_us - now_us or 0

  if cost > 0 and cost <= amount and (wait_us == 0 or (wait_us <= patience_us and wait_us <= HORIZON_US)) then
    if cell > current then frame = put_ahead(limit, state, frame, cell, current) end
    frame[frame.n] = frame[frame.n] + cost
    frame.ahead = cell - current
    local remaining = wait_us == 0 and amount - sum - cost or 0
    return { 1, remaining, 0, (cell + cells) * cell_us - now_us, wait_us, now_us, cell }, frame
  end
  local remaining = tail == current and math.max(0, amount - sum) or 0
  local reset_us = math.max(0, end_cell(frame) * cell_us - now_us)
  local outcome = {
    (cost == 0 and wait_us == 0) and 1 or 0, remaining, cost <= amount and wait_us or -1, reset_us, 0, now_us, tail,
  }
  return outcome, state and reset_us > 0 and after_refusal(state, now_us) or state
end

--@refund
-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(_, state, now_us, units, receipt, cancel)
  local refunded = math.min(units, receipt.cost - receipt.returned)
  local served_us, mark = receipt.at_us + receipt.delay_us, receipt.mark
  if not state or refunded <= 0 or (cancel and served_us < now_us) then return nil end
  local cell_us, index = state.cell_us, mark - state.tail + state.n
  -- A charge that was decided as of a later instant carries a later cell, and so does a reservation that found a state
  -- of another cut.
  if served_us < (mark - 1) * cell_us - SWING_US or served_us >= (mark + 1) * cell_us then return nil end
  if mark + state.cells <= quotient(now_us, cell_us) then return nil end
  if index < 1 or index > state.n or state[index] == 0 then return nil end
  local after = { cell_us = cell_us, cells = state.cells, tail = state.tail, n = state.n }
  for i = 1, state.n do after[i] = state[i] end
  after[index] = math.max(0, after[index] - refunded)
  local max_back, back = math.max(0, math.min(state.ahead, state.n - state.cells)), 0
  while back < max_back and after[after.n] == 0 do
    after[after.n] = nil
    after.n, after.tail, back = after.n - 1, after.tail - 1, back + 1
  end
  if after.n <= after.cells then after = slide(state, after, after.tail, after.tail) end
  after.ahead = state.ahead - back
  return after
end

-- Returns the state in the limit's cells, up to its tail or the current cell, as a copy.
local function current_counts(limit, state, at_us)
  local current = quotient(at_us, limit.cell_us)
  if not state then return slide(limit, nil, current, current) end
  if state.cell_us ~= limit.cell_us or state.cells ~= limit.cells then
    local entries, tail_us = changed_entries(limit, state, at_us)
    local tail = tail_us > at_us and quotient(tail_us + limit.cell_us - 1, limit.cell_us) or current
    local moved = moved_counts(limit, entries, tail, current)
    return tail == current and slide(limit, moved, tail, tail) or moved
  end
  local tail = math.min(state.tail, current + state.ahead)
  if tail <= current then return slide(limit, state, tail, current) end
  local copy = { cell_us = state.cell_us, cells = state.cells, tail = tail, ahead = tail - current, n = state.n }
  for i = 1, state.n do copy[i] = state[i] end
  return copy
end

function M.surcharge(limit, state, now_us, units, receipt)
  local cell_us, at_us = limit.cell_us, as_at(state, now_us)
  local counts = current_counts(limit, state, at_us)
  local due_us = math.max(at_us, receipt.at_us + receipt.delay_us)
  local back = math.max(0, counts.tail - quotient(due_us, cell_us))
  local missing = math.max(0, math.min(limit.cells, back + 1) - counts.n)
  if missing > 0 then
    for i = counts.n, 1, -1 do counts[i + missing] = counts[i] end
    for i = 1, missing do counts[i] = 0 end
    counts.n = counts.n + missing
  end
  local index = counts.n - back
  if index < 1 then return nil end -- Reservations lie so far ahead that this cell is not stored any more.
  counts[index] = math.max(counts[index], math.min(counts[index] + units, MAX_AMOUNT))
  return counts
end

--@gateway
function M.quota(limit, arithmetic) return arithmetic.window_quota(limit.amount, limit.cell_us * limit.cells) end

function M.share(limit, units, sharers, arithmetic)
  local period_us = arithmetic.window_us(limit.amount, limit.cell_us, sharers, limit.cells)
  return period_us and { units, period_us / limit.cells, limit.cells }
end

function M.max_state_bytes(limit, arithmetic)
  local digit_count = arithmetic.digit_count
  return digit_count(limit.cell_us) + digit_count(limit.cells) + 16 + 3 + limit.cells * (digit_count(limit.amount) + 1)
end

return M
