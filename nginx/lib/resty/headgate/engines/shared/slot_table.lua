-- Leases of slots on the dict: the twin of lua/commands/slots.lua, for those who do not stand in line.
--
-- A key is one string of instants: the least fence never given, when a lease was last written, how many leases there
-- are, blanks, and then a fence and its end for each lease, the first to end first. It is cut and joined, never taken
-- apart: a decision on a thousand leases copies some 15 kB.
--
-- A key that finds no room has its lease among those of its hand's overflow, and its fence is below zero.
--
-- The least number that no key behind a lock was ever given stands in the dict beside the lock: it outlives the keys,
-- so that no fence comes again, whatever the clock does.
--
-- Laws (tests/nginx/engines/shared/test_slots.py): those of algorithms/slots.py; at no instant are more than `amount`
-- leases alive.

local instants = require "resty.headgate.engines.shared.timestamps"
local keeps = require "resty.headgate.engines.shared.state_storage"
local model = require "resty.headgate.algorithms.slots"
local room = require "resty.headgate.engines.shared.overflow"

local M = {}

local floor, max = math.floor, math.max
local at, cut, pack = instants.at, instants.cut, instants.pack
local WIDTH = 2 * instants.WIDTH

-- The fence and the end of a lease, counted from 0.
local function fence_of(kept, place) return at(kept.leases, 2 * place) end
local function end_of(kept, place) return at(kept.leases, 2 * place + 1) end

-- The leases from low up to, not including, high.
local function some(kept, low, high) return cut(kept.leases, 2 * low, 2 * high) end

local function hold(kept, leases)
  kept.leases, kept.n = leases, #leases / WIDTH
end

-- The clock stepped back: all of them end so much earlier. What ends before 1970 is dead either way.
local function shift(kept, by_us, now_us)
  local moved = {}
  for i = 0, kept.n - 1 do moved[i + 1] = pack(fence_of(kept, i)) .. pack(max(0, end_of(kept, i) - by_us)) end
  hold(kept, table.concat(moved))
  kept.stamp_us, kept.moved = now_us, true
end

-- Loads a key; `at_us` is the instant that it is judged as at.
local function load(store, name, now_us)
  local text = store:get(name)
  if not text then return { fresh = 0, stamp_us = 0, leases = "", n = 0, at_us = now_us } end
  local kept = { fresh = at(text, 0), stamp_us = at(text, 1), text = text }
  hold(kept, string.sub(text, #text - at(text, 2) * WIDTH + 1))
  local stepped_us = model.stepped_us(kept.stamp_us, now_us)
  if stepped_us > 0 then shift(kept, stepped_us, now_us) end
  kept.at_us = model.as_at(kept.stamp_us, now_us)
  return kept
end

local function last_us(kept) return kept.n > 0 and end_of(kept, kept.n - 1) or 0 end

-- False if there is no room: then what was there before may be gone.
local function save(store, name, kept, now_us)
  local dead_at_ms = model.dead_at_ms(last_us(kept), kept.fresh, now_us, false)
  if not dead_at_ms then return store:delete(name) end
  local header = pack(kept.fresh) .. pack(kept.stamp_us) .. pack(kept.n)
  local text = instants.roomy(header, kept.leases, kept.text)
  return store:safe_set(name, text, keeps.seconds(dead_at_ms - floor(now_us / 1000), now_us))
end

local function remove(kept, place) hold(kept, some(kept, 0, place) .. some(kept, place + 1, kept.n)) end

-- How many at the front are dead.
local function dead_in(kept)
  local dead = 0
  while dead < kept.n and not model.alive(end_of(kept, dead), kept.at_us) do dead = dead + 1 end
  return dead
end

local function put(kept, fence, expires_us)
  local place = kept.n
  while place > 0 and end_of(kept, place - 1) > expires_us do place = place - 1 end
  hold(kept, some(kept, 0, place) .. pack(fence) .. pack(expires_us) .. some(kept, place, kept.n))
  kept.stamp_us, kept.fresh = kept.at_us, max(kept.fresh, fence + 1)
end

-- The place of a lease that is alive.
local function held(kept, fence)
  for i = 0, kept.n - 1 do
    if fence_of(kept, i) == fence then return model.alive(end_of(kept, i), kept.at_us) and i or nil end
  end
end

local function judge(kept, limit, now_us, dead)
  local state = { alive = kept.n - dead, behind = 0, opens_us = 0, last_us = last_us(kept), fresh = kept.fresh }
  local turn = model.turn(limit, state.alive)
  if turn then state.opens_us = end_of(kept, dead + turn) end
  return model.decide(limit, state, now_us, 1, kept.at_us)
end

-- What was there before, after no room was found for more.
local function restore(store, name, text, now_us)
  if not text then return end
  local kept = load({ get = function() return text end }, name, now_us)
  if not save(store, name, kept, now_us) then room.tell("the leases of " .. name .. " were lost") end
end

-- Outcome; nil if there is no room for the lease. The caller holds the lock, beside which `fences` stands in the dict.
function M.acquire(dict, store, name, limit, now_us, fences)
  local kept = load(store, name, now_us)
  kept.fresh = max(kept.fresh, dict:get(fences) or 0)
  local dead = dead_in(kept)
  local facts, fence, expires_us = judge(kept, limit, now_us, dead)
  if not fence then
    if kept.moved then save(store, name, kept, now_us) end
    return facts
  end
  hold(kept, some(kept, dead, kept.n))
  put(kept, fence, expires_us)
  if save(store, name, kept, now_us) then
    dict:safe_set(fences, kept.fresh)
    return facts
  end
  restore(store, name, kept.text, now_us)
  return nil
end

-- Whether the lease was still held; it ends later now.
function M.renew(store, name, limit, fence, now_us)
  local kept = load(store, name, now_us)
  local place = held(kept, fence)
  if place then
    remove(kept, place)
    put(kept, fence, model.renewed_us(limit, kept.at_us))
  end
  if place or kept.moved then save(store, name, kept, now_us) end
  return place ~= nil
end

-- Whether the lease was still held.
function M.release(store, name, _, fence, now_us)
  local kept = load(store, name, now_us)
  local place = held(kept, fence)
  if place then remove(kept, place) end
  if place or kept.moved then save(store, name, kept, now_us) end
  return place ~= nil
end

return M
