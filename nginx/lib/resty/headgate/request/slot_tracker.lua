-- Tracks the slots that requests of this worker hold, and releases each when its request ends, however it ends.
--
-- The log phase is the only one that every request reaches, and it cannot wait for Redis: so it queues the slots, and a
-- timer releases them. The same timer renews slots that are held for long. A worker that is killed renews nothing any
-- more, and its slots end by their ttl. A worker that exits at a reload renews until its last request has ended.
--
--   request 1   acquire ........................ log: queued, released by the timer a moment later
--   request 2   acquire ....... a third of the ttl: renewed ....... log
--
-- The slots of a request are stored under its address in memory (redirected_request.lua), which stays the same over
-- internal redirects, unlike any table of the request.
--
-- Only slots need the log phase, and a configuration may lack ours somewhere. A request that arrives at an address
-- under which slots are still held proves that: the request before it ended without our log phase. Its slots are
-- released then. MAX_UNLOGGED_ARRIVALS arrivals without a single log phase count as proof, too. In both cases an error
-- is logged, and nothing is renewed any more: slots that would never be released end by their ttl.
--
-- Laws (tests/nginx/request/test_slot_tracker.py): every slot that was acquired is released or expires; a request that
-- lasts longer than the ttl keeps its slot; a release that fails is tried again until the slot has expired.

local M = {}

local TIMEOUT_S = 1.0 -- of one request to an engine
local INTERVAL_S = 0.5 -- between two runs of the timer
local MAX_UNLOGGED_ARRIVALS = 1000

local ffi = require "ffi"
local ngx, address_of = ngx, require("resty.headgate.request.redirected_request").address

ffi.cdef "intptr_t ngx_event_no_timers_left(void);"
local has_symbol, no_timers_left = pcall(function() return ffi.C.ngx_event_no_timers_left end)

-- Returns whether nginx would exit this worker now, but for our timer: slots that are still held then belong to
-- requests that ended without our log phase.
local function only_ours_left() return not has_symbol or no_timers_left() == 0 end

local SlotTracker = {}
SlotTracker.__index = SlotTracker

-- `engines`: shared and redis.
function M.new(engines)
  return setmetatable({
    engines = engines, held = {}, count = 0, queue = {}, timer_armed = false, log_phase_missing = false, arrivals = 0,
  }, SlotTracker)
end

local function ttl_of(slot) return slot.charge.bound_limit.limit.numbers[2] / 1000000 end

local function release(self, slot)
  local engine = slot.charge.bound_limit.on_shared_dict and self.engines.shared or self.engines.redis
  local released = engine:release(slot.charge, slot.fence, TIMEOUT_S)
  return released ~= nil
end

-- Releases the queued slots; those that fail stay in the queue until they expire.
local function flush(self)
  local queue = self.queue
  self.queue = {}
  for _, slot in ipairs(queue) do
    if not release(self, slot) and slot.until_s > ngx.now() then self.queue[#self.queue + 1] = slot end
  end
end

-- Returns the slots of whose ttl a third is over.
local function slots_due(self)
  local result = {}
  for _, slots in pairs(self.held) do
    for _, slot in ipairs(slots) do
      if slot.until_s - ngx.now() < ttl_of(slot) * 2 / 3 then result[#result + 1] = slot end
    end
  end
  return result
end

local function report_missing_log_phase(self)
  if self.log_phase_missing then return end
  self.log_phase_missing = true
  ngx.log(ngx.ERR, "headgate: requests end without our log phase, so slots are not renewed any more. Write ",
    'log_by_lua_block { require("resty.headgate").log() } wherever the access phase is ours.')
end

local function renew(self)
  if self.arrivals >= MAX_UNLOGGED_ARRIVALS then report_missing_log_phase(self) end
  if self.log_phase_missing then return end
  for _, slot in ipairs(slots_due(self)) do
    local engine = slot.charge.bound_limit.on_shared_dict and self.engines.shared or self.engines.redis
    local sent_at_s = ngx.now()
    if engine:renew(slot.charge, slot.fence, TIMEOUT_S) then slot.until_s = sent_at_s + ttl_of(slot) end
  end
end

-- Releases and renews slots. A worker that is exiting (a reload) gets no timer of a later time, so it sleeps in this
-- one.
local function maintain(_, self)
  flush(self)
  renew(self)
  local exiting = ngx.worker.exiting()
  if exiting and only_ours_left() or self.count == 0 and (exiting or #self.queue == 0) then
    self.timer_armed = false
    return
  end
  if exiting then ngx.sleep(INTERVAL_S) end
  self.timer_armed = ngx.timer.at(exiting and 0 or INTERVAL_S, maintain, self)
end

local function flush_now(_, self)
  self.flushing = false
  flush(self)
end

local function release_all(self, address)
  local slots = self.held[address]
  self.held[address], self.count = nil, self.count - 1
  for _, slot in ipairs(slots) do
    if not (slot.charge.bound_limit.on_shared_dict and release(self, slot)) then self.queue[#self.queue + 1] = slot end
  end
  if #self.queue > 0 and not self.flushing then self.flushing = ngx.timer.at(0, flush_now, self) end
end

-- Handles the arrival of a request. Slots that are still held under its address belong to one that ended without our
-- log phase.
function SlotTracker:request_arrived()
  if self.count == 0 then return end
  self.arrivals = self.arrivals + 1
  local address = address_of()
  if not self.held[address] then return end
  release_all(self, address)
  report_missing_log_phase(self)
end

-- Stores the slots that the current request holds: { charge, fence } each.
function SlotTracker:hold(slots)
  local address = address_of()
  for _, slot in ipairs(slots) do slot.until_s = ngx.now() + ttl_of(slot) end
  self.held[address], self.count = slots, self.count + 1
  if not self.timer_armed then
    self.timer_armed = ngx.timer.at(ngx.worker.exiting() and 0 or INTERVAL_S, maintain, self)
  end
end

-- Releases the slots of the current request, which has ended.
function SlotTracker:request_ended()
  if self.count == 0 then return end
  self.arrivals = -math.huge -- log phases do run
  local address = address_of()
  if self.held[address] then release_all(self, address) end
end

return M
