-- Spacing: the twin of algorithms/spaced.py.

local M = { width = 1 }

local HORIZON_US = 366 * 86400000000

function M.limit(argv, i) return { gap_us = tonumber(argv[i]) } end

function M.unpack(text) return string.match(text, "^%d+$") and tonumber(text) end

function M.pack(state) return string.format("%.0f", state) end

function M.ttl_ms(_, state, now_us) return math.ceil((state - now_us) / 1000) end

function M.decide(limit, state, now_us, cost, patience_us)
  local wait_us = state and math.min(HORIZON_US, math.max(0, state - now_us)) or 0
  if cost == 1 and wait_us <= math.max(0, patience_us) then
    local reset_us = wait_us + limit.gap_us
    return { 1, 0, 0, reset_us, wait_us, now_us, 0 }, now_us + reset_us
  end
  local is_free = wait_us == 0
  return { cost == 0 and is_free and 1 or 0, is_free and 1 or 0, cost <= 1 and wait_us or -1, wait_us, 0, now_us, 0 },
    state
end

function M.refund() return nil end

function M.surcharge(limit, state, now_us, units)
  return math.min(math.max(now_us, state or 0) + units * limit.gap_us, now_us + HORIZON_US)
end

--@gateway
function M.quota(limit, arithmetic)
  local per_second = arithmetic.per_second(1, limit.gap_us)
  return { quota = 1, window = arithmetic.ceil_div(limit.gap_us, 1000000), per_second = per_second, fresh = 1 }
end

function M.share(limit, _, sharers, arithmetic) return { arithmetic.stored_us(limit.gap_us * sharers) } end

function M.max_state_bytes() return 16 end

return M
