-- A rate that holds a quantile of response times at a target: the twin of adaptive/target_rate.py, which explains it.
--
-- Law (tests/nginx/test_adaptive_parity.py): bit by bit the rate and the reason of Python.

local libm = require "resty.headgate.adaptive.libm"

local M = {}

local max, min = math.max, math.min

local STEP_SHARE, BACKOFF, HYSTERESIS = 0.02, 0.85, 0.15

M.MIN_WINDOW_S, M.SAMPLES = 1.0, 100
M.FIELDS = { "learned" }

-- Returns the settings of a rate between these bounds. `target_s`: in seconds.
function M.settings(low, high, target_s, quantile)
  return { floor = low, ceiling = high, target_s = target_s, quantile = quantile }
end

function M.start(settings, s) s.learned = settings.ceiling end

-- Learns from a window of so many calls and seconds: changes the state, and returns the reason. `measured_s`: the
-- quantile of its response times, with drops as the slowest.
function M.update(settings, s, calls, seconds, measured_s)
  local rate, target_s = s.learned, settings.target_s
  local reason
  if calls == 0 or seconds <= 0 then return "no calls" end
  if measured_s > target_s then
    rate, reason = rate * (measured_s > 2 * target_s and libm.pow(BACKOFF, 2) or BACKOFF), "above the target"
  elseif measured_s >= target_s * (1 - HYSTERESIS) then
    reason = "at the target"
  elseif calls / seconds < 0.8 * rate then
    reason = "not used"
  else
    local step = STEP_SHARE * settings.ceiling
    rate, reason = rate + (measured_s < target_s / 2 and 2 * step or step), "below the target"
  end
  s.learned = max(settings.floor, min(settings.ceiling, rate))
  return reason
end

return M
