-- Counts the calls in flight, enforces the limit, and gathers the windows that an algorithm learns from: the twin of
-- adaptive/gate.py, which explains it.
--
-- A gate is a table (or a struct) of numbers: the fields below, and those of its algorithm. `responses` holds the
-- response times of the window, for a quantile: :add(ns), :sorted() and :clear(). Times are in nanoseconds.
--
-- Law (tests/nginx/test_adaptive_parity.py): bit by bit the limits and the reasons of Python.

local libm = require "resty.headgate.adaptive.libm"
local reasons = require "resty.headgate.adaptive.reasons"

local M = {}

local exp, log = libm.exp, libm.log
local floor, huge, max, min, sqrt = math.floor, math.huge, math.max, math.min, math.sqrt

local MANY_DROPS = 10
local MAX_RESPONSES = 10000

M.SUCCESS, M.IGNORED, M.DROPPED = 0, 1, 2
M.MAX_RESPONSES = MAX_RESPONSES

M.FIELDS = {
  "limit", "in_flight", "reason", "windows", "window_ns", "window_samples", "opened_ns", "settled_ns", "sum_ns",
  "log_sum", "log_squares", "met", "samples", "dropped", "refused", "arrived", "peak", "responses",
}

-- Begins a window.
function M.open_window(gate, algorithm, settings, responses, now_ns)
  local settle_ns
  gate.window_ns, gate.window_samples, settle_ns = algorithm.window_of(settings, gate)
  gate.opened_ns, gate.settled_ns = now_ns, now_ns + settle_ns
  gate.sum_ns, gate.log_sum, gate.log_squares = 0, 0, 0
  gate.met, gate.samples, gate.dropped, gate.refused, gate.arrived = 0, 0, 0, 0, 0
  gate.peak = gate.in_flight
  if gate.responses > 0 then responses:clear() end
  gate.responses = 0
end

-- Begins anew, with the calls that are in flight.
function M.start(gate, algorithm, settings, responses, now_ns)
  algorithm.start(settings, gate)
  gate.limit, gate.reason, gate.windows = floor(gate.learned), reasons.NUMBERS.start, 0
  M.open_window(gate, algorithm, settings, responses, now_ns)
end

-- Goes on with other settings of the same algorithm (`is_same`) or of another one, from the limit that it has, moved
-- into the new bounds. The calls in flight stay.
function M.change(gate, algorithm, settings, responses, now_ns, is_same)
  local learned = gate.learned
  local limit = max(settings.floor, min(settings.ceiling, learned))
  if not is_same then algorithm.start(settings, gate) end
  gate.learned = limit
  if limit ~= learned and gate.has_trial == 1 then
    gate.has_trial, gate.trial_limit, gate.trial_in_flight, gate.trial_response_ns = 0, 0, 0, 0
    gate.trial_windows, gate.trial_slower_ns = 0, 0
  end
  gate.limit, gate.reason = floor(limit), reasons.NUMBERS["changed settings"]
  M.open_window(gate, algorithm, settings, responses, now_ns)
end

-- Counts one more call, and returns how many are in flight with it; 0 if it must not begin.
function M.try_enter(gate)
  local in_flight = gate.in_flight
  if in_flight >= gate.limit then
    gate.refused = gate.refused + 1
    return 0
  end
  gate.arrived = gate.arrived + 1
  in_flight = in_flight + 1
  gate.in_flight = in_flight
  if in_flight > gate.peak then gate.peak = in_flight end
  return in_flight
end

-- Counts a call that begins although it was refused, and returns how many are in flight with it.
function M.enter_above(gate)
  gate.in_flight = gate.in_flight + 1
  gate.peak = max(gate.peak, gate.in_flight)
  return gate.in_flight
end

-- Returns how many calls could begin now.
function M.room(gate) return max(0, gate.limit - gate.in_flight) end

-- Returns how many calls can begin at once, if none are in flight.
function M.units_at_once(gate) return gate.limit end

-- Notes that a call would begin if the limit were higher.
function M.wait(gate) gate.refused = gate.refused + 1 end

-- Notes that a call came, and was refused for its priority.
function M.turn_away(gate) gate.arrived = gate.arrived + 1 end

-- Takes back a call that did not begin after all.
function M.cancel(gate) gate.in_flight = gate.in_flight - 1 end

-- Returns the quantile of the window's response times, with drops as the slowest; 0 if none is wanted.
local function quantile_ns(gate, settings, responses)
  local calls = gate.responses + gate.dropped
  if not settings.quantile or calls == 0 then return 0 end
  local number = min(calls - 1, floor(settings.quantile * calls))
  if number >= gate.responses then return huge end
  return responses:sorted()[number + 1] or huge
end

local window = {} -- one for all: an algorithm keeps nothing of it

local function fill_window(gate, settings, responses, now_ns)
  local samples = gate.samples
  local mean = samples > 0 and gate.log_sum / samples or 0
  local variance = samples > 0 and max(0, gate.log_squares / samples - mean * mean) or 0
  window.response_ns = samples > 0 and gate.sum_ns / samples or 0
  window.in_flight, window.dropped, window.samples = gate.peak, gate.dropped, samples
  window.mean_in_flight = samples > 0 and gate.met / (2 * samples) or 0
  window.refused = gate.refused
  window.typical_ns = samples > 0 and exp(mean) or 0
  window.spread = samples > 0 and sqrt(variance / samples) or 0
  window.arrived, window.length_ns = gate.arrived + gate.refused, now_ns - gate.opened_ns
  window.quantile_ns = quantile_ns(gate, settings, responses)
  return window
end

-- Counts a call that ended, and moves the limit if a window is complete. `entered`: what try_enter returned.
function M.leave(gate, algorithm, settings, responses, entered, response_ns, now_ns, outcome)
  local in_flight = gate.in_flight
  gate.in_flight = in_flight - 1
  if outcome == M.IGNORED then return end
  if outcome == M.DROPPED then
    gate.dropped = gate.dropped + 1
  elseif now_ns >= gate.settled_ns then
    response_ns = max(1, response_ns)
    gate.samples, gate.met = gate.samples + 1, gate.met + entered + in_flight
    gate.sum_ns = gate.sum_ns + response_ns
    local logarithm = log(response_ns)
    gate.log_sum, gate.log_squares = gate.log_sum + logarithm, gate.log_squares + logarithm * logarithm
    if settings.quantile and gate.responses < MAX_RESPONSES and responses:add(response_ns) then
      gate.responses = gate.responses + 1
    end
  end
  local enough = gate.samples + gate.dropped >= gate.window_samples or gate.dropped >= MANY_DROPS
  if enough and now_ns - gate.opened_ns >= gate.window_ns then
    local reason = algorithm.update(settings, gate, fill_window(gate, settings, responses, now_ns))
    gate.windows, gate.limit, gate.reason = gate.windows + 1, floor(gate.learned), reasons.NUMBERS[reason]
    M.open_window(gate, algorithm, settings, responses, now_ns)
  end
end

return M
