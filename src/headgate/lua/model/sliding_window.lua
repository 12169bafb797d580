-- The sliding window: the twin of model/sliding_window.py, where its story and its laws are told.
--
-- A state is one table: the counts from the oldest at 1 to the tail's at n, beside the names below. Numbers of
-- cells and lengths of time are whole; fmod makes the quotients exact.

local M = { width = 3 }

local function over(a, b) return (a - math.fmod(a, b)) / b end

function M.limit(argv, i)
  return { amount = tonumber(argv[i]), cell_us = tonumber(argv[i + 1]), cells = tonumber(argv[i + 2]) }
end

function M.unpack(text)
  local cell_us, cells, tail, counts, ahead = string.match(text, "^(%d+):(%d+):(%d+):([%d,]+):?(%d*)$")
  local state = {
    cell_us = tonumber(cell_us), cells = tonumber(cells), tail = tonumber(tail), ahead = tonumber(ahead) or 0, n = 0,
  }
  local n = 0
  for count in string.gmatch(counts, "%d+") do
    n = n + 1
    state[n] = tonumber(count)
  end
  state.n = n
  return state
end

-- concat writes numbers with 14 digits, and counts have at most that many.
function M.pack(state)
  local counts = table.concat(state, ",", 1, state.n)
  if state.ahead == 0 then
    return string.format("%.0f:%.0f:%.0f:%s", state.cell_us, state.cells, state.tail, counts)
  end
  return string.format("%.0f:%.0f:%.0f:%s:%.0f", state.cell_us, state.cells, state.tail, counts, state.ahead)
end

-- The cell from which on nothing counts any more, not even the tail's place in the queue.
local function ended(state)
  for i = state.n, 1, -1 do
    if state[i] > 0 then return state.tail - state.n + i + state.cells end
  end
  return state.tail
end

function M.ttl_ms(_, state, now_us)
  return math.max(0, math.ceil((ended(state) * state.cell_us - now_us) / 1000) + 100)
end

local SWING_US = 100000

-- The latest instant that the state proves.
local function stamp_of(state) return (state.tail - state.ahead) * state.cell_us end

-- The instant that a charge is judged as at: now, or what the state proves if the clock swings.
local function as_at(state, now_us)
  if not state then return now_us end
  local stamp_us = stamp_of(state)
  return stamp_us > now_us and stamp_us <= now_us + SWING_US and stamp_us or now_us
end

-- A copy whose frame, of the limit's cut, ends with `to`, from the first count in use; and the sum of its counts.
local function slid(limit, state, tail, to)
  local copy = { cell_us = limit.cell_us, cells = limit.cells, tail = to, ahead = 0, n = 0 }
  local n, sum = 0, 0
  if state then
    local first = state.n + to - tail - limit.cells + 1
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
    for _ = 1, to - tail do
      n = n + 1
      copy[n] = 0
    end
  end
  copy.n = n
  return copy, sum
end

-- The frame that ends with the tail or the current cell, and the sum of its counts.
local function settled(limit, state, at_us, current)
  if not state then return slid(limit, nil, current, current) end
  local old_us, cell_us, cells = state.cell_us, limit.cell_us, limit.cells
  local past = old_us == cell_us and current or over(at_us, old_us)
  local tail = math.min(state.tail, past + state.ahead)
  if old_us == cell_us and state.cells == cells then
    return slid(limit, state, tail, tail > current and tail or current)
  end
  local moved = math.max(current, over(tail * old_us, cell_us))
  local frame = { n = cells }
  for i = 1, cells do frame[i] = 0 end
  for i = 1, state.n do
    local old = tail - state.n + i
    local cell = old > past and over(old * old_us, cell_us)
      or math.min(current, over((old + 1) * old_us - 1, cell_us))
    local place = cell - moved + cells
    if old > past - state.cells and place > 0 then frame[place] = frame[place] + state[i] end
  end
  return slid(limit, frame, moved, moved)
end

function M.decide(limit, state, now_us, cost, patience_us)
  local amount, cell_us, cells = limit.amount, limit.cell_us, limit.cells
  local at_us = as_at(state, now_us)
  local current = over(at_us, cell_us)
  local frame, sum = settled(limit, state, at_us, current)
  local tail = frame.tail
  local cell, excess = tail, sum + (cost > 0 and cost or 1) - amount
  for i = 1, frame.n do
    if excess <= 0 then break end
    excess = excess - frame[i]
    cell = tail - frame.n + i + cells
  end
  local wait_us = cell > current and cell * cell_us - now_us or 0
  local horizon_us = 366 * 86400 * 1000000

  if cost > 0 and cost <= amount and (wait_us == 0 or (wait_us <= patience_us and wait_us <= horizon_us)) then
    if cell > tail then frame = slid(limit, frame, tail, cell) end
    frame[frame.n] = frame[frame.n] + cost
    frame.ahead = cell - current
    local remaining = wait_us == 0 and amount - sum - cost or 0
    return { 1, remaining, 0, (cell + cells) * cell_us - now_us, wait_us, now_us, cell }, frame
  end
  local remaining = tail == current and math.max(0, amount - sum) or 0
  local reset_us = math.max(0, ended(frame) * cell_us - now_us)
  local reply = {
    (cost == 0 and wait_us == 0) and 1 or 0, remaining, cost <= amount and wait_us or -1, reset_us, 0, now_us, tail,
  }
  if not state or reset_us == 0 or at_us >= stamp_of(state) then return reply, state end
  -- The clock was set back behind the state, which moves along with it.
  local after = { cell_us = state.cell_us, cells = state.cells, ahead = state.ahead, n = state.n }
  for i = 1, state.n do after[i] = state[i] end
  after.tail = over(now_us, state.cell_us) + state.ahead
  return reply, after
end

--@refund
-- receipt: cost, at_us, reset_after_us, delay_us, mark, returned
function M.refund(_, state, now_us, units, receipt, cancel)
  local given = math.min(units, receipt.cost - receipt.returned)
  local served_us, mark = receipt.at_us + receipt.delay_us, receipt.mark
  if not state or given <= 0 or (cancel and served_us < now_us) then return nil end
  local cell_us, place = state.cell_us, mark - state.tail + state.n
  -- A charge that was judged as at a later instant carries a later cell.
  if served_us < mark * cell_us - SWING_US or served_us >= (mark + 1) * cell_us then return nil end
  if mark + state.cells <= over(now_us, cell_us) then return nil end
  if place < 1 or place > state.n or state[place] == 0 then return nil end
  local after = slid(state, state, state.tail, state.tail)
  place = mark - after.tail + after.n
  after[place] = math.max(0, after[place] - given)
  after = slid(state, after, after.tail, after.tail)
  after.ahead = state.ahead
  return after
end

return M
