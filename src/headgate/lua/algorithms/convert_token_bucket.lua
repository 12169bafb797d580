-- Converts a token bucket to other numbers: a change gives no permits away.
--
-- A key with three permits keeps three, in whole ones rounded down, and at most as many as the new bucket can hold; the
-- rest comes with time. So no sequence of changes ever makes a fresh bucket of a used one. Often it is unknown when the
-- numbers changed, only that it was after `since_us`, when the last charge passed: then what came back meanwhile counts
-- at the slower of the two rates. A caller that changes them now passes since_us = now_us.

local M = {}

-- Returns the state under the new numbers. `decide` is the token bucket's.
function M.carried(decide, old, new, state, since_us, now_us)
  local function convert_at(at_us)
    local remaining = decide(old, state, at_us, 0, -1)[2]
    local _, after = decide(new, nil, at_us, math.max(0, new.burst - remaining), -1)
    after = after or at_us -- Full, but used: a bucket that has just run dry of water.
    return after, decide(new, after, now_us, 0, -1)[4]
  end
  if since_us > now_us then since_us = now_us end
  local at_old_rate, at_old_rate_us = convert_at(now_us)
  local at_new_rate, at_new_rate_us = convert_at(since_us)
  if at_new_rate_us > at_old_rate_us then return at_new_rate end
  return at_old_rate
end

return M
