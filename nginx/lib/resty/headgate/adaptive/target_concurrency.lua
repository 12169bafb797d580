-- A limit on the calls in flight that holds a quantile of response times at a target: the twin of
-- adaptive/target_concurrency.py, which explains it.
--
-- Law (tests/nginx/test_adaptive_parity.py): bit by bit the limit, the state and the reason of Python.

local libm = require "resty.headgate.adaptive.libm"

local M = {}

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local NS_PER_SECOND = 1e9
local MIN_SAMPLES, MAX_SETTLE_NS, DEFAULT_START = 20, 1e9, 20
local BACKOFF, GROWTH, HYSTERESIS, MIN_WINDOW_S = 0.9, 0.05, 0.15, 0.5

M.FIELDS = { "learned", "response_ns" }

-- Returns the settings of a limit between these bounds. `target_s`: in seconds.
function M.settings(low, high, target_s, quantile)
  return { floor = low, ceiling = high, target_s = target_s, quantile = quantile }
end

function M.start(settings, s)
  s.learned, s.response_ns = max(settings.floor, min(settings.ceiling, DEFAULT_START)), 0
end

-- Returns when the next window is complete: its length, its calls, and how long it settles.
function M.window_of(settings)
  local needed = ceil(floor(1 / (1 - settings.quantile) * 1e6 + 0.5) / 1e6)
  local settle_ns = min(MAX_SETTLE_NS, settings.target_s * NS_PER_SECOND)
  return MIN_WINDOW_S * NS_PER_SECOND + settle_ns, max(MIN_SAMPLES, needed), settle_ns
end

-- Learns from a window: changes the state, and returns the reason.
function M.update(settings, s, window)
  local limit, measured, target_s = s.learned, window.quantile_ns / NS_PER_SECOND, settings.target_s
  local reason
  if measured > target_s then
    limit = min(limit - 1, limit * (measured > 2 * target_s and libm.pow(BACKOFF, 2) or BACKOFF))
    reason = "above the target"
  elseif measured >= target_s * (1 - HYSTERESIS) then
    reason = "at the target"
  elseif window.in_flight < floor(limit) and window.refused == 0 then
    reason = "not used"
  else
    local growth = measured < target_s / 2 and 2 * GROWTH or GROWTH
    limit, reason = limit + max(1.0, growth * limit), "below the target"
  end
  s.learned, s.response_ns = max(settings.floor, min(settings.ceiling, limit)), window.response_ns
  return reason
end

return M
