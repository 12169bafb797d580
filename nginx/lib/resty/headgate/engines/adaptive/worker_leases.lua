-- Tells the calls of workers that live from those of workers that died: each worker has a slot in the dict, with its
-- process id and an epoch that no other worker has.
--
--   a:w:<slot>   "<process id>:<epoch>"       a:epoch   the last epoch
--
-- A worker takes a slot with its first call, and keeps it until its process is gone. Every second each worker looks
-- for slots whose process is gone, and frees them: calls with the epoch of such a slot end nowhere any more. A reload
-- changes nothing: old workers keep their slots until their last request has ended.
--
-- Above state_layout.WORKERS processes at once, the others have no slot: they pass every call and count none.
--
-- Law (tests/nginx/adaptive/test_adaptive_rules.py): the calls of a worker that was killed are no longer in flight two
-- seconds later, or at the first call that would be refused after that.

local ffi = require "ffi"

local lock = require "resty.headgate.engines.shared.lock"
local state_layout = require "resty.headgate.engines.adaptive.state_layout"

ffi.cdef [[
int headgate_kill(int pid, int signal) __asm__("kill");
]]

local M = {}

local ESRCH = 3
local INTERVAL_S = 1.0
local SLOT, EPOCH = "a:w:", "a:epoch"
local LOCK = lock.of "workers"
local MAX_SLOTS = state_layout.WORKERS

local WorkerLeases = {}
WorkerLeases.__index = WorkerLeases

function M.new(dict)
  dict:safe_add(EPOCH, 0)
  return setmetatable({ dict = dict, slot = nil, epoch = nil }, WorkerLeases)
end

-- Returns the process id and the epoch of a slot; nil if it is free.
local function read(dict, slot)
  local text = dict:get(SLOT .. slot)
  if not text then return nil, nil end
  local pid, epoch = string.match(text, "^(%d+):(%d+)$")
  return tonumber(pid), tonumber(epoch)
end

local function is_gone(pid) return ffi.C.headgate_kill(pid, 0) ~= 0 and ffi.errno() == ESRCH end

-- Frees the slots of processes that are gone. The lock is ours. Returns the first free slot, if any.
local function free_dead(self)
  local dict, first_free, this_pid = self.dict, nil, ngx.worker.pid()
  for slot = 0, MAX_SLOTS - 1 do
    local pid = read(dict, slot)
    if pid and (is_gone(pid) or (pid == this_pid and slot ~= self.slot)) then
      dict:delete(SLOT .. slot)
      pid = nil
    end
    if not pid then first_free = first_free or slot end
  end
  return first_free
end

local function with_lock(self, action)
  local ticket = lock.take(self.dict, LOCK, INTERVAL_S)
  if not ticket then return nil end
  local result = action(self)
  lock.free(self.dict, LOCK, ticket)
  return result
end

local function claim(self)
  local slot = free_dead(self)
  if not slot then return nil end
  local epoch = self.dict:incr(EPOCH, 1)
  if not epoch or not self.dict:safe_set(SLOT .. slot, string.format("%d:%d", ngx.worker.pid(), epoch)) then
    return nil
  end
  self.slot, self.epoch = slot, epoch
  return slot
end

local function on_timer(premature, self)
  if premature then return end
  with_lock(self, free_dead)
  if self.on_second then self.on_second() end
  ngx.timer.at(INTERVAL_S, on_timer, self)
end

-- Takes a slot, unless this worker has one. Returns whether it has. `on_second` is called every second from then on.
function WorkerLeases:hold(on_second)
  if self.slot then return true end
  if not with_lock(self, claim) then return false end
  self.on_second = on_second
  if not ngx.worker.exiting() then ngx.timer.at(INTERVAL_S, on_timer, self) end
  return true
end

-- Returns whether the worker with this epoch still has this slot.
local function is_alive(self, slot, epoch)
  local _, current = read(self.dict, slot)
  return current == epoch
end

-- Removes the calls of dead workers from a state; returns whether there were any.
function WorkerLeases:remove_dead_calls(gate)
  local found = false
  for slot = 0, MAX_SLOTS - 1 do
    local calls = gate.calls_of[slot]
    if calls > 0 and not is_alive(self, slot, gate.epochs[slot]) then
      gate.in_flight, gate.calls_of[slot], found = math.max(0, gate.in_flight - calls), 0, true
    end
  end
  return found
end

-- Makes a state count the calls that this worker really has: an update is lost if a worker is suspended while it holds
-- the lock, and another one frees it.
function WorkerLeases:correct_calls(gate, calls)
  local slot = self.slot
  if not slot or gate.epochs[slot] ~= self.epoch or gate.calls_of[slot] == calls then return end
  gate.in_flight = math.max(0, gate.in_flight + calls - gate.calls_of[slot])
  gate.calls_of[slot] = calls
end

-- Counts a call of this worker, which is in flight now.
function WorkerLeases:add_call(gate)
  local slot = self.slot
  if gate.epochs[slot] ~= self.epoch then
    gate.in_flight = math.max(1, gate.in_flight - gate.calls_of[slot]) -- of a dead worker, which had the slot
    gate.epochs[slot], gate.calls_of[slot] = self.epoch, 0
  end
  gate.calls_of[slot] = gate.calls_of[slot] + 1
end

-- Takes a call of this worker off its count; returns false if it is not counted: the state was lost meanwhile.
function WorkerLeases:remove_call(gate)
  local slot = self.slot
  if gate.epochs[slot] ~= self.epoch or gate.calls_of[slot] == 0 then return false end
  gate.calls_of[slot] = gate.calls_of[slot] - 1
  return true
end

return M
