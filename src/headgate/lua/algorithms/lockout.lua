-- The lockout: the twin of algorithms/lockout.py, which tells its story and its laws.

local M = { width = 3 }

function M.limit(argv, i)
  return { after = tonumber(argv[i]), within_us = tonumber(argv[i + 1]), for_us = tonumber(argv[i + 2]) }
end

function M.unpack(text)
  local until_us, refusals = string.match(text, "^(%d+):(%d+)$")
  if not until_us or #until_us > 16 or #refusals > 16 then return nil end
  return { until_us = tonumber(until_us), refusals = tonumber(refusals) }
end

function M.pack(state)
  return string.format("%.0f:%.0f", state.until_us, state.refusals)
end

function M.ttl_ms(_, state, now_us)
  return math.ceil((state.until_us - now_us) / 1000)
end

-- Returns the state as it counts now: nil once it is over, else the same table unless its end had to move.
function M.current_state(lockout, state, now_us)
  if not state or state.until_us <= now_us then return nil end
  local furthest_us = now_us + (state.refusals > 0 and lockout.within_us or lockout.for_us)
  if state.until_us <= furthest_us then return state end
  return { until_us = furthest_us, refusals = state.refusals }
end

-- Returns how long a current state still locks; 0: it does not.
function M.left_us(state, now_us)
  if not state or state.refusals > 0 then return 0 end
  return state.until_us - now_us
end

-- Returns the state after one more refusal, of a current state that does not lock.
function M.count_refusal(lockout, state, now_us)
  local refusals = (state and state.refusals or 0) + 1
  if refusals >= lockout.after then return { until_us = now_us + lockout.for_us, refusals = 0 } end
  return { until_us = state and state.until_us or now_us + lockout.within_us, refusals = refusals }
end

--@gateway
function M.max_state_bytes(lockout, arithmetic) return 16 + 1 + arithmetic.digit_count(lockout.after) end

return M
