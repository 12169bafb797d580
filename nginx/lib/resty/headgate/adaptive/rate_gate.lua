-- Enforces a rate that follows response times: a token bucket whose rate target_rate.lua moves. The twin of
-- adaptive/rate_gate.py. A gate is a table (or a struct) of numbers, as that of concurrency_gate.lua.
--
-- Law (tests/nginx/test_adaptive_parity.py): bit by bit the rates, the tokens and the reasons of Python.

local concurrency_gate = require "resty.headgate.adaptive.concurrency_gate"
local reasons = require "resty.headgate.adaptive.reasons"
local target_rate = require "resty.headgate.adaptive.target_rate"

local M = {}

local floor, huge, max, min = math.floor, math.huge, math.max, math.min

local NS_PER_SECOND = 1e9
local BURST_SECONDS = 0.1
local MAX_RESPONSES = concurrency_gate.MAX_RESPONSES

M.FIELDS = { "tokens", "filled_ns" }

local function burst_of(gate) return max(1.0, gate.learned * BURST_SECONDS) end

local function open_window(gate, responses, now_ns)
  gate.samples, gate.dropped, gate.opened_ns = 0, 0, now_ns
  if gate.responses > 0 then responses:clear() end
  gate.responses = 0
end

-- Begins anew, with the calls that are in flight.
function M.start(gate, _, settings, responses, now_ns)
  target_rate.start(settings, gate)
  gate.limit, gate.reason, gate.windows = max(1, floor(gate.learned)), reasons.NUMBERS.start, 0
  gate.tokens, gate.filled_ns = burst_of(gate), now_ns
  open_window(gate, responses, now_ns)
end

-- Goes on with other settings, from the rate that it has, moved into the new bounds.
function M.change(gate, _, settings, responses, now_ns)
  gate.learned = max(settings.floor, min(settings.ceiling, gate.learned))
  gate.limit, gate.reason = max(1, floor(gate.learned)), reasons.NUMBERS["changed settings"]
  open_window(gate, responses, now_ns)
end

local function tokens_at(gate, now_ns)
  local elapsed = max(0, now_ns - gate.filled_ns) / NS_PER_SECOND
  return min(burst_of(gate), gate.tokens + elapsed * gate.learned)
end

-- Takes a token, and returns how many calls are in flight with this one; 0 if it must not begin.
function M.try_enter(gate, now_ns)
  gate.tokens, gate.filled_ns = tokens_at(gate, now_ns), max(now_ns, gate.filled_ns)
  if gate.tokens < 1 then return 0 end
  gate.tokens, gate.in_flight = gate.tokens - 1, gate.in_flight + 1
  return gate.in_flight
end

-- Counts a call that begins although it was refused.
function M.enter_above(gate)
  gate.in_flight = gate.in_flight + 1
  return gate.in_flight
end

-- Returns how many calls could begin now.
function M.room(gate, now_ns) return floor(tokens_at(gate, now_ns)) end

-- Returns how many calls can begin at once, if none are in flight.
function M.units_at_once(gate) return max(1, floor(gate.limit * BURST_SECONDS)) end

-- Note nothing: a rate learns from the calls that end.
function M.wait() end
function M.turn_away() end

-- Takes back a call that did not begin after all, with its token.
function M.cancel(gate)
  gate.in_flight = gate.in_flight - 1
  gate.tokens = min(burst_of(gate), gate.tokens + 1)
end

-- Returns the quantile of the window's response times in seconds, with drops as the slowest.
local function quantile_s(gate, settings, responses)
  local calls = gate.responses + gate.dropped
  local number = min(calls - 1, floor(settings.quantile * calls))
  if number < 0 then return 0 end
  if number >= gate.responses then return huge end
  return (responses:sorted()[number + 1] or huge) / NS_PER_SECOND
end

-- Counts a call that ended, and moves the rate if a window is complete.
function M.leave(gate, _, settings, responses, _, response_ns, now_ns, outcome)
  gate.in_flight = gate.in_flight - 1
  if outcome == concurrency_gate.DROPPED then
    gate.dropped = gate.dropped + 1
  elseif outcome == concurrency_gate.SUCCESS then
    gate.samples = gate.samples + 1
    if gate.responses < MAX_RESPONSES and responses:add(response_ns) then gate.responses = gate.responses + 1 end
  end
  local calls, seconds = gate.samples + gate.dropped, (now_ns - gate.opened_ns) / NS_PER_SECOND
  local is_complete = seconds >= target_rate.MIN_WINDOW_S and calls >= target_rate.SAMPLES
  if not is_complete and seconds <= 10 * target_rate.MIN_WINDOW_S then return end
  local reason = target_rate.update(settings, gate, calls, seconds, quantile_s(gate, settings, responses))
  gate.windows, gate.limit, gate.reason = gate.windows + 1, max(1, floor(gate.learned)), reasons.NUMBERS[reason]
  open_window(gate, responses, now_ns)
end

return M
