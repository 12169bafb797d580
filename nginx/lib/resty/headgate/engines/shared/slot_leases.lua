-- Stores the leases of slots on the dict: the twin of lua/commands/slots.lua, without queues.
--
-- A key is one string of timestamps: the next fence, when a lease was last written, how many leases there are, padding,
-- and then a fence and its end for each lease, the first to end first. It is cut and joined, never unpacked: a decision
-- on a thousand leases copies some 15 kB.
--
-- A key for which the dict has no room has its lease among those of its bound limit's overflow count, and its fence is
-- negative.
--
-- The next fence of all keys behind a lock is stored in the dict beside the lock: it outlives the keys, so that no
-- fence is repeated, whatever the clock does.
--
-- Laws (tests/nginx/engines/shared/test_slots.py): those of algorithms/slots.py; at no instant are more than `amount`
-- leases alive.

local model = require "resty.headgate.algorithms.slots"
local overflow = require "resty.headgate.engines.shared.overflow"
local state_storage = require "resty.headgate.engines.shared.state_storage"
local timestamps = require "resty.headgate.engines.shared.timestamps"

local M = {}

local floor, max = math.floor, math.max
local at, cut, pack = timestamps.at, timestamps.cut, timestamps.pack
local WIDTH = 2 * timestamps.WIDTH

-- Return the fence and the end of a lease, counted from 0.
local function fence_of(slots, index) return at(slots.leases, 2 * index) end
local function end_of(slots, index) return at(slots.leases, 2 * index + 1) end

-- Returns the leases from low up to, not including, high.
local function slice(slots, low, high) return cut(slots.leases, 2 * low, 2 * high) end

local function set_leases(slots, leases)
  slots.leases, slots.count = leases, #leases / WIDTH
end

-- Shifts all leases after the clock stepped back: they end so much earlier. A lease that ends before 1970 is dead
-- either way.
local function shift(slots, by_us, now_us)
  local shifted = {}
  for i = 0, slots.count - 1 do shifted[i + 1] = pack(fence_of(slots, i)) .. pack(max(0, end_of(slots, i) - by_us)) end
  set_leases(slots, table.concat(shifted))
  slots.stamp_us, slots.shifted = now_us, true
end

-- Loads a key; `at_us` is the instant at which it is evaluated.
local function load(store, name, now_us)
  local text = store:get(name)
  if not text then return { next_fence = 0, stamp_us = 0, leases = "", count = 0, at_us = now_us } end
  local slots = { next_fence = at(text, 0), stamp_us = at(text, 1), text = text }
  set_leases(slots, string.sub(text, #text - at(text, 2) * WIDTH + 1))
  local stepped_us = model.stepped_us(slots.stamp_us, now_us)
  if stepped_us > 0 then shift(slots, stepped_us, now_us) end
  slots.at_us = model.as_at(slots.stamp_us, now_us)
  return slots
end

local function last_us(slots) return slots.count > 0 and end_of(slots, slots.count - 1) or 0 end

-- Saves a key. Returns false if there is no room: the previous state may be gone then.
local function save(store, name, slots, now_us)
  local dead_at_ms = model.dead_at_ms(last_us(slots), slots.next_fence, now_us, false)
  if not dead_at_ms then return store:delete(name) end
  local header = pack(slots.next_fence) .. pack(slots.stamp_us) .. pack(slots.count)
  local text = timestamps.pad(header, slots.leases, slots.text)
  return store:safe_set(name, text, state_storage.seconds(dead_at_ms - floor(now_us / 1000), now_us))
end

local function remove(slots, index)
  set_leases(slots, slice(slots, 0, index) .. slice(slots, index + 1, slots.count))
end

-- Returns how many leases at the front are dead.
local function count_dead(slots)
  local dead = 0
  while dead < slots.count and not model.alive(end_of(slots, dead), slots.at_us) do dead = dead + 1 end
  return dead
end

local function put(slots, fence, expires_us)
  local index = slots.count
  while index > 0 and end_of(slots, index - 1) > expires_us do index = index - 1 end
  set_leases(slots, slice(slots, 0, index) .. pack(fence) .. pack(expires_us) .. slice(slots, index, slots.count))
  slots.stamp_us, slots.next_fence = slots.at_us, max(slots.next_fence, fence + 1)
end

-- Returns the index of a lease that is alive.
local function index_of(slots, fence)
  for i = 0, slots.count - 1 do
    if fence_of(slots, i) == fence then return model.alive(end_of(slots, i), slots.at_us) and i or nil end
  end
end

local function decide(slots, limit, now_us, dead)
  local state = {
    alive = slots.count - dead, behind = 0, opens_us = 0, last_us = last_us(slots), fresh = slots.next_fence,
  }
  local turn = model.turn(limit, state.alive)
  if turn then state.opens_us = end_of(slots, dead + turn) end
  return model.decide(limit, state, now_us, 1, slots.at_us)
end

-- Restores the previous state, after there was no room for a larger one.
local function restore(store, name, text, now_us)
  if not text then return end
  local slots = load({ get = function() return text end }, name, now_us)
  if not save(store, name, slots, now_us) then overflow.log_full("the leases of " .. name .. " were lost") end
end

-- Acquires a slot. Returns the Outcome; nil if there is no room for the lease. The caller holds the lock; `fences` is
-- the key of the next fence beside it.
function M.acquire(dict, store, name, limit, now_us, fences)
  local slots = load(store, name, now_us)
  slots.next_fence = max(slots.next_fence, dict:get(fences) or 0)
  local dead = count_dead(slots)
  local outcome, fence, expires_us = decide(slots, limit, now_us, dead)
  if not fence then
    if slots.shifted then save(store, name, slots, now_us) end
    return outcome
  end
  set_leases(slots, slice(slots, dead, slots.count))
  put(slots, fence, expires_us)
  if save(store, name, slots, now_us) then
    dict:safe_set(fences, slots.next_fence)
    return outcome
  end
  restore(store, name, slots.text, now_us)
  return nil
end

-- Renews a lease; returns whether it was still held.
function M.renew(store, name, limit, fence, now_us)
  local slots = load(store, name, now_us)
  local index = index_of(slots, fence)
  if index then
    remove(slots, index)
    put(slots, fence, model.renewed_us(limit, slots.at_us))
  end
  if index or slots.shifted then save(store, name, slots, now_us) end
  return index ~= nil
end

-- Releases a lease; returns whether it was still held.
function M.release(store, name, _, fence, now_us)
  local slots = load(store, name, now_us)
  local index = index_of(slots, fence)
  if index then remove(slots, index) end
  if index or slots.shifted then save(store, name, slots, now_us) end
  return index ~= nil
end

return M
