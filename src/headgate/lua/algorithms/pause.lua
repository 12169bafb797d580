-- The pause: the twin of algorithms/pause.py, which tells its story and its laws.

local max = math.max
local M = { width = 0 }

local SWING_US = 100000

function M.unpack(text)
  local until_us, lag_us, stamp_us = string.match(text, "^(%d+):(%d+):(%d+)$")
  if not until_us or #until_us > 16 or #lag_us > 16 or #stamp_us > 16 then return nil end
  return { until_us = tonumber(until_us), lag_us = tonumber(lag_us), stamp_us = tonumber(stamp_us) }
end

function M.pack(state)
  return string.format("%.0f:%.0f:%.0f", state.until_us, state.lag_us, state.stamp_us)
end

-- Returns the state as it counts now: the same table, unless the clock was set back behind it.
function M.current_state(state, now_us)
  if state.stamp_us <= now_us + SWING_US then return state end
  return { until_us = state.until_us - (state.stamp_us - now_us), lag_us = state.lag_us, stamp_us = now_us }
end

-- Returns how long a current state still pauses; 0: it does not.
function M.left_us(state, now_us)
  return state and max(0, state.until_us - now_us) or 0
end

-- Returns what the key's clock shows; `has_edges`: under a limit whose windows begin at fixed instants.
function M.clock_us(state, now_us, has_edges)
  if not state then return now_us end
  local latest_us = max(now_us, state.until_us)
  return has_edges and latest_us or latest_us - state.lag_us
end

-- Returns a current state after a pause from now on; the same table if a longer pause is under way.
function M.extended(state, now_us, duration_us)
  local until_us = now_us + duration_us
  if not state then return { until_us = until_us, lag_us = duration_us, stamp_us = now_us } end
  if until_us <= state.until_us then return state end
  return { until_us = until_us, lag_us = state.lag_us + until_us - max(now_us, state.until_us), stamp_us = now_us }
end

return M
