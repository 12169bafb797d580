-- Slots that requests of this worker hold: each goes back when its request ends, however it ends.
--
-- The log phase is the only one that every request reaches, and it cannot wait for Redis: so it queues what goes back,
-- and a timer hands the queue over. The same timer renews what is held for long. A worker that is killed renews nothing
-- any more, and its slots end by their ttl. One that leaves at a reload renews until its last request has ended.
--
--   request 1   acquire ........................ log: queued, given back by the timer a moment later
--   request 2   acquire ....... a third of the ttl: renewed ....... log
--
-- Which slots a request holds is told by its address in memory (current.lua): that stays the same over internal
-- redirects, as no table of a request's own does.
--
-- Only slots need the log phase, and a configuration may lack ours, somewhere. Whoever arrives at the address of one
-- that still holds something proves that: it has ended, and nobody saw it. Its slots go back then. Where MANY have
-- arrived and no end was ever seen, it is as good as proven. In both cases the log says so, and nothing is renewed any
-- more: slots that nobody would give back end by their ttl, rather than never.
--
-- Laws (tests/nginx/request/test_slot_tracker.py): whatever was acquired is released or has expired; a request that
-- lasts longer than the ttl keeps its slot; what Redis does not take back is offered again until it has expired by
-- itself.

local M = {}

local PATIENCE = 1.0 -- seconds for one answer
local LOOK = 0.5 -- seconds between two looks at what is held, and at what could not be given back
local MANY = 1000

local ffi = require "ffi"
local ngx, address_of = ngx, require("resty.headgate.request.request_identity").address

ffi.cdef "intptr_t ngx_event_no_timers_left(void);"
local known, no_timers_left = pcall(function() return ffi.C.ngx_event_no_timers_left end)

-- Whether nginx would end this worker now, but for us: what is held then belongs to requests that ended without a log
-- phase of ours.
local function nobody_left() return not known or no_timers_left() == 0 end

local Holding = {}
Holding.__index = Holding

-- `engines`: here and there.
function M.new(engines)
  return setmetatable({
    engines = engines, held = {}, count = 0, queue = {}, looking = false, unseen = false, arrivals = 0,
  }, Holding)
end

local function ttl_of(slot) return slot.charge.hand.limit.numbers[2] / 1000000 end

local function release(self, slot)
  local engine = slot.charge.hand.here and self.engines.here or self.engines.there
  local done = engine:release(slot.charge, slot.fence, PATIENCE)
  return done ~= nil
end

-- Hand over what is queued; what is not taken stays in the queue while it lives.
local function flush(self)
  local queue = self.queue
  self.queue = {}
  for _, slot in ipairs(queue) do
    if not release(self, slot) and slot.until_s > ngx.now() then self.queue[#self.queue + 1] = slot end
  end
end

-- Those of whose ttl a third is over.
local function due(self)
  local found = {}
  for _, slots in pairs(self.held) do
    for _, slot in ipairs(slots) do
      if slot.until_s - ngx.now() < ttl_of(slot) * 2 / 3 then found[#found + 1] = slot end
    end
  end
  return found
end

local function unseen(self)
  if self.unseen then return end
  self.unseen = true
  ngx.log(ngx.ERR, "headgate: requests end unseen, so slots are not renewed any more. Write ",
    'log_by_lua_block { require("resty.headgate").log() } wherever the access phase is ours.')
end

local function renew(self)
  if self.arrivals >= MANY then unseen(self) end
  if self.unseen then return end
  for _, slot in ipairs(due(self)) do
    local engine = slot.charge.hand.here and self.engines.here or self.engines.there
    local asked_s = ngx.now()
    if engine:renew(slot.charge, slot.fence, PATIENCE) then slot.until_s = asked_s + ttl_of(slot) end
  end
end

-- A worker that is leaving (a reload) gets no timer of a later time, so it sleeps in this one.
local function look(_, self)
  flush(self)
  renew(self)
  local leaving = ngx.worker.exiting()
  if leaving and nobody_left() or self.count == 0 and (leaving or #self.queue == 0) then
    self.looking = false
    return
  end
  if leaving then ngx.sleep(LOOK) end
  self.looking = ngx.timer.at(leaving and 0 or LOOK, look, self)
end

local function soon(_, self)
  self.flushing = false
  flush(self)
end

local function let_go(self, address)
  local slots = self.held[address]
  self.held[address], self.count = nil, self.count - 1
  for _, slot in ipairs(slots) do
    if not (slot.charge.hand.here and release(self, slot)) then self.queue[#self.queue + 1] = slot end
  end
  if #self.queue > 0 and not self.flushing then self.flushing = ngx.timer.at(0, soon, self) end
end

-- A request has come. What is still held under its address belongs to one that ended without a log phase of ours.
function Holding:arrived()
  if self.count == 0 then return end
  self.arrivals = self.arrivals + 1
  local address = address_of()
  if not self.held[address] then return end
  let_go(self, address)
  unseen(self)
end

-- The current request holds these slots: { charge, fence } each.
function Holding:hold(slots)
  local address = address_of()
  for _, slot in ipairs(slots) do slot.until_s = ngx.now() + ttl_of(slot) end
  self.held[address], self.count = slots, self.count + 1
  if not self.looking then self.looking = ngx.timer.at(ngx.worker.exiting() and 0 or LOOK, look, self) end
end

-- The current request has ended.
function Holding:ended()
  if self.count == 0 then return end
  self.arrivals = -math.huge -- ends are seen
  local address = address_of()
  if self.held[address] then let_go(self, address) end
end

return M
