-- Measures the load of a service: the calls that come, in those that it can work on. The twin of
-- adaptive/offered_load.py, which explains it. A state has rate, last_rate, capacity, calls and level as fields that
-- begin with load_.
--
-- Law (tests/nginx/test_adaptive_parity.py): bit by bit the load of Python.

local libm = require "resty.headgate.adaptive.libm"

local M = {}

local exp, expm1, log = libm.exp, libm.expm1, libm.log
local huge, max, min = math.huge, math.max, math.min

local CALLS, LAST_CALLS = 800, 100
local SECONDS = 30.0
local SPIKE = 0.8
local CAPACITY_WEIGHT = 0.3
local QUEUE, LONG_QUEUE = 1.15, 1.6
local FEW = 0.55
local FORGET = 0.99
local LOST = 0.7
local SURE, DOUBTFUL = 0.80, 0.94
local RARE = 7.0

local function add_arrivals(s, window)
  local came, seconds = window.arrived, window.length_ns / 1e9
  local per_ns = came / window.length_ns
  s.load_calls = min(CALLS, s.load_calls + came)
  s.load_rate = s.load_rate + max(came / s.load_calls, -expm1(-seconds / SECONDS)) * (per_ns - s.load_rate)
  s.load_last_rate = s.load_last_rate
    + min(1.0, max(came / s.load_calls, came / LAST_CALLS)) * (per_ns - s.load_last_rate)
end

-- Adds a window to the load; `base_ns` is how long calls take without a queue.
function M.add_window(s, window, in_flight, base_ns)
  if window.length_ns > 0 and window.arrived > 0 then add_arrivals(s, window) end
  local answered = in_flight / window.response_ns
  local ratio = window.typical_ns / base_ns * exp(-2.0 * window.spread)
  local capacity, level = s.load_capacity, s.load_level
  local queueing = ratio > QUEUE and in_flight >= FEW * level
  if capacity == 0 or (queueing and answered < LOST * capacity) then
    if queueing then s.load_capacity, s.load_level = answered, in_flight end
  elseif queueing or answered > 1.1 * capacity then
    local sure = queueing and min(1.0, (ratio - 1.0) / (LONG_QUEUE - 1.0)) or 0.5
    local weight = CAPACITY_WEIGHT * libm.pow(sure, 2)
    s.load_capacity = capacity + weight * (answered - capacity)
    s.load_level = level + weight * (in_flight - level)
  else
    s.load_level = level * FORGET
  end
end

-- Returns the load; infinite as long as it is not known.
function M.ratio(s)
  if s.load_rate == 0 or s.load_capacity == 0 then return huge end
  return max(s.load_rate, SPIKE * s.load_last_rate) / s.load_capacity
end

-- Returns the calls that may queue in a random burst of a healthy load; 0 if the load is not healthy.
function M.burst_queue(s)
  local load = M.ratio(s)
  if load >= DOUBTFUL then return 0.0 end
  local share = min(1.0, (DOUBTFUL - load) / (DOUBTFUL - SURE))
  return share * RARE / -log(load)
end

return M
