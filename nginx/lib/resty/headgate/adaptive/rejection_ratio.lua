-- Refuses the least important calls first: the share of calls to refuse, and which ones those are. The twin of
-- RejectionRatio in adaptive/priority.py, which explains it. Class 0 is the most important. Chance is an argument.
--
-- A state has numbers (FIELDS), `counts` (calls of each class among the last RECENT_CALLS) and `recent` (the class of
-- each of those, the oldest at `next_index` once all are there). Both lists begin at 0.
--
-- Law (tests/nginx/test_adaptive_parity.py): with the same chances the decisions and the ratio of Python.

local M = {}

local floor, max, min = math.floor, math.max, math.min

local PERIOD_NS = 100000000.0
local MORE = 1.2
local MOST_RESERVED, RESERVED_PART, RARELY = 10, 0.23, 0.002

M.RECENT_CALLS, M.MAX_CLASSES = 1000, 10
M.FIELDS = { "classes", "ratio", "calls", "roomless", "period_ends_ns", "length", "next_index" }

-- Moves the ratio by what happened in the last tenth of a second.
local function adjust(state, now_ns)
  if state.calls > 0 then
    local share = state.roomless / state.calls
    if share > 0.02 then
      state.ratio = min(0.99, state.ratio + 0.25 * share)
    else
      state.ratio = max(0.0, 1.0 - MORE * (1.0 - state.ratio))
    end
  end
  state.calls, state.roomless, state.period_ends_ns = 0, 0, now_ns + PERIOD_NS
end

local function remember(state, priority)
  local counts, recent, index = state.counts, state.recent, state.next_index
  if state.length == M.RECENT_CALLS then
    counts[recent[index]] = counts[recent[index]] - 1
  else
    state.length = state.length + 1
  end
  recent[index] = priority
  counts[priority] = counts[priority] + 1
  state.next_index = (index + 1) % M.RECENT_CALLS
end

-- Returns whether a call that arrives is among those to refuse. `chance`: a number from 0 to 1.
function M.rejects(state, now_ns, priority, chance)
  if now_ns >= state.period_ends_ns then adjust(state, now_ns) end
  state.calls = state.calls + 1
  remember(state, priority)
  if state.ratio == 0 then return false end
  local less_important = 0
  for class = priority + 1, state.classes - 1 do less_important = less_important + state.counts[class] end
  return (less_important + chance * state.counts[priority]) / state.length < state.ratio
end

-- Returns how many of so many places a call of this class has to leave to more important ones.
local function reserved_of(state, priority, places)
  if state.ratio == 0 then return 0 end
  local more_important = 0
  for class = 0, priority - 1 do more_important = more_important + state.counts[class] end
  if more_important == 0 then return 0 end
  local part = more_important / state.length / (1.0 - state.ratio) -- of the calls that pass
  local most, reserved, all_taken = min(MOST_RESERVED, floor(RESERVED_PART * places)), 0, 1.0
  while reserved < most and all_taken > RARELY do
    reserved, all_taken = reserved + 1, all_taken * part
  end
  return reserved
end

-- Notes a call that was not rejected, and could not be served.
function M.found_no_room(state) state.roomless = state.roomless + 1 end

-- Lets a call enter a gate, unless it is refused. Returns how many calls are in flight with it; 0 if it is refused.
function M.enter(state, gate_module, gate, now_ns, priority, chance)
  if M.rejects(state, now_ns, priority, chance) then
    if gate.in_flight >= gate.limit then gate_module.wait(gate) else gate_module.turn_away(gate) end
    return 0
  end
  local reserved = reserved_of(state, priority, gate_module.units_at_once(gate))
  if reserved > 0 and gate_module.room(gate, now_ns) <= reserved then
    gate_module.wait(gate)
    M.found_no_room(state)
    return 0
  end
  local entered = gate_module.try_enter(gate, now_ns) -- counts a call that finds no room
  if entered == 0 then M.found_no_room(state) end
  return entered
end

return M
