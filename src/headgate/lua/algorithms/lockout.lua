-- The lockout: the twin of algorithms/lockout.py, where its story and its laws are told.

local M = { width = 3 }

function M.limit(argv, i)
  return { after = tonumber(argv[i]), within_us = tonumber(argv[i + 1]), for_us = tonumber(argv[i + 2]) }
end

function M.unpack(text)
  local until_us, counted = string.match(text, "^(%d+):(%d+)$")
  if not until_us or #until_us > 16 or #counted > 16 then return nil end
  return { until_us = tonumber(until_us), counted = tonumber(counted) }
end

function M.pack(state)
  return string.format("%.0f:%.0f", state.until_us, state.counted)
end

function M.ttl_ms(_, state, now_us)
  return math.ceil((state.until_us - now_us) / 1000)
end

-- The state as it counts now: nil once it is over, the very one that was given unless it had to be moved.
function M.settled(lockout, state, now_us)
  if not state or state.until_us <= now_us then return nil end
  local furthest_us = now_us + (state.counted > 0 and lockout.within_us or lockout.for_us)
  if state.until_us <= furthest_us then return state end
  return { until_us = furthest_us, counted = state.counted }
end

-- How long a settled state still locks; 0: it does not.
function M.left_us(state, now_us)
  if not state or state.counted > 0 then return 0 end
  return state.until_us - now_us
end

-- A settled state that does not lock, after one more refusal.
function M.refused(lockout, state, now_us)
  local counted = (state and state.counted or 0) + 1
  if counted >= lockout.after then return { until_us = now_us + lockout.for_us, counted = 0 } end
  return { until_us = state and state.until_us or now_us + lockout.within_us, counted = counted }
end

return M
