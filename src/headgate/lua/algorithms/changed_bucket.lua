-- A token bucket under other numbers than before: a change hands out nothing.
--
-- Who held three permits holds three, in whole ones rounded down, and at most as many as the new bucket can hold; the
-- rest comes with time. So no sequence of changes ever makes a fresh bucket of a used one. Often nobody knows when the
-- numbers changed, only that it was after `since_us`, when the last charge passed: then what came back meanwhile is
-- reckoned at the slower of the two rates. Who changes them now says so with since_us = now_us.

local M = {}

-- `decide` is the token bucket's.
function M.carried(decide, old, new, state, since_us, now_us)
  local function reckoned_at(at_us)
    local held = decide(old, state, at_us, 0, -1)[2]
    local _, after = decide(new, nil, at_us, math.max(0, new.burst - held), -1)
    after = after or at_us -- Full, but used: a bucket that has just run dry of water.
    return after, decide(new, after, now_us, 0, -1)[4]
  end
  if since_us > now_us then since_us = now_us end
  local by_old, by_old_us = reckoned_at(now_us)
  local by_new, by_new_us = reckoned_at(since_us)
  if by_new_us > by_old_us then return by_new end
  return by_old
end

return M
