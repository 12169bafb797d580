-- Slots: the twin of algorithms/slots.py, which tells its story and its laws.

local max = math.max
local M = { width = 2 }

local TICKET_US = 1000000
local SWING_US = 100000
local FENCE_MEMORY_US = 86400 * 1000000

function M.limit(argv, i)
  return { amount = tonumber(argv[i]), ttl_us = tonumber(argv[i + 1]) }
end

function M.alive(expires_us, now_us)
  return expires_us > now_us
end

-- Returns which of the `alive`, counted from 0 as they end, must end before a newcomer passes; nil if none.
function M.turn(limit, alive)
  if alive >= limit.amount then return alive - limit.amount end
end

-- state: alive, behind, opens_us, last_us, fresh. Returns the outcome (mark: the fence, or the place in the queue);
-- then, of a lease: fence, expires_us.
function M.decide(limit, state, now_us, cost, at_us)
  local free = limit.amount - state.alive
  if cost > 0 and free + state.behind > 0 then
    local fence, expires_us = max(state.fresh, at_us), at_us + limit.ttl_us
    local reset_us = max(state.last_us, expires_us) - now_us
    return { 1, max(0, free - 1), 0, reset_us, 0, now_us, fence }, fence, expires_us
  end
  local reset_us = max(0, state.last_us - now_us)
  if free > 0 then return { 1, free, 0, reset_us, 0, now_us, 0 } end
  return { 0, 0, state.opens_us - now_us, reset_us, 0, now_us, 1 - free - state.behind }
end

-- Returns a new ticket: its number, and when it expires unless its waiter tries again.
function M.draw(fresh, now_us)
  return max(fresh, now_us), now_us + TICKET_US
end

function M.renewed_us(limit, now_us)
  return now_us + limit.ttl_us
end

-- Returns how far the clock was set back behind the last lease or ticket written: all of them end that much earlier.
function M.stepped_us(stamp_us, now_us)
  return stamp_us - now_us > SWING_US and stamp_us - now_us or 0
end

-- Returns the instant that a key is decided as of: now, or that of its last writing if the clock swings.
function M.as_at(stamp_us, now_us)
  return stamp_us > now_us and stamp_us <= now_us + SWING_US and stamp_us or now_us
end

-- The sequence of numbers as it is stored: the least one that was never used, below zero (commands/slots.lua).
function M.unpack_fresh(score)
  return score and -tonumber(score) or 0
end

function M.pack_fresh(number)
  return -(number + 1)
end

-- Returns when the key dies, in whole milliseconds, as Redis counts; nil if that is not ahead. `remembers`: nothing
-- but the key stores its last number.
function M.dead_at_ms(last_us, fresh, now_us, remembers)
  local dead_us = max(last_us + SWING_US, remembers and fresh + FENCE_MEMORY_US or fresh)
  if dead_us > now_us then return math.ceil(dead_us / 1000) end
end

--@gateway
-- What a shared dict stores for each unit, and how many timestamps that is.
M.unit_entry = { name = "a lease", timestamps = 2 }
M.is_held = true -- a unit is acquired by a request of its own, and held until it is released

function M.quota(limit) return { quota = limit.amount, fresh = limit.amount } end

function M.share(limit, units, _, arithmetic) return { units, arithmetic.stored_us(limit.ttl_us) } end

return M
