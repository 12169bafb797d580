-- Enforces adaptive limits: one for all workers of this nginx, on the shared dict. The counterpart of
-- enforcement/adaptive_rules.py in Python; the arithmetic is in adaptive/.
--
--   a:<head><key>}    the state of a limit (state_layout.lua)         the same and r    response times of its window
--   the same and p    of a rule with priorities, which calls came (adaptive/rejection_ratio.lua)
--
-- A call takes the lock of its limit twice, when it begins and when it ends; in between nothing is locked. Each time
-- the state is read, changed and written, and the worker does not yield. The times are those of the monotonic clock,
-- which all workers share.
--
-- A limit that belongs to a rule without a key has its place from the start. One with a key is forgotten when it was
-- idle for KEYED_TTL_S. Where the dict has no room for a new key, its calls pass and are not counted, and one line of
-- the log says so.
--
-- Laws (tests/nginx/adaptive): never more calls begin than the limit of Python's arithmetic allows, of all workers
-- together; a call that ended is in flight nowhere; those of a worker that died end within two seconds
-- (worker_leases.lua).

local bindings = require "resty.headgate.engines.adaptive.bindings"
local bound_limits = require "resty.headgate.engines.shared.bound_limits"
local clock = require "resty.headgate.clock"
local concurrency_gate = require "resty.headgate.adaptive.concurrency_gate"
local lock = require "resty.headgate.engines.shared.lock"
local overflow = require "resty.headgate.engines.shared.overflow"
local reasons = require "resty.headgate.adaptive.reasons"
local rejection_ratio = require "resty.headgate.adaptive.rejection_ratio"
local state_layout = require "resty.headgate.engines.adaptive.state_layout"
local worker_leases = require "resty.headgate.engines.adaptive.worker_leases"

local M = {}

local floor, max, random = math.floor, math.max, math.random
local count_name, monotonic_us, wall_us = bound_limits.count_name, clock.monotonic_us, clock.wall_us
local ALL = "all" -- the key of a rule that counts all calls together
local TTL_S, KEYED_TTL_S = 25 * 3600, 3600
local REMOVED_TTL_S = 10 -- of a rule that is in force no longer
local DEFAULT_RESPONSE_NS = 1e8 -- before the first window
local RATE = 3 -- the number of the algorithm that moves a rate
local CANCELLED = "cancelled"

-- One of each for all states: between reading and writing a worker does not yield.
local gate, ratio = state_layout.gate.new(), state_layout.ratio.new()

local Engine = {}
Engine.__index = Engine

-- `on_change(binding, key, before, after, reason)` is called with each change of a limit.
function M.new(dict, prefix, on_change)
  return setmetatable({
    dict = dict, prefix = prefix, on_change = on_change, leases = worker_leases.new(dict), pending = {},
    bindings = setmetatable({}, { __mode = "k" }), keyless = {}, newest = {}, calls_of = {},
  }, Engine)
end

function Engine:binding(bound_limit)
  local binding = self.bindings[bound_limit]
  if not binding then
    binding = bindings.bind(bound_limit, self.prefix)
    self.bindings[bound_limit] = binding
  end
  return binding
end

-- The response times of a window, as a list in the dict.
local responses = {}

function responses:add(response_ns)
  local length = self.dict:rpush(self.name, response_ns)
  if length == 1 then self.dict:expire(self.name, TTL_S) end
  return length ~= nil
end

function responses:clear() self.dict:delete(self.name) end

function responses:sorted()
  local list, number, value = {}, 0, self.dict:lpop(self.name)
  while value do
    number = number + 1
    list[number] = value
    value = self.dict:lpop(self.name)
  end
  table.sort(list)
  return list
end

local function responses_of(dict, name)
  responses.dict, responses.name = dict, name .. "r"
  return responses
end

-- Begins anew, or goes on with other settings, if the state is of an older binding. Returns whether the state is of
-- this binding's algorithm: a worker that still has an older rulebook can then go on with its own settings.
local function adopt(binding, list, now_ns)
  if gate.settings_id == binding.settings_id then return true end
  if binding.bound_ns <= gate.since_ns then return gate.algorithm_id == binding.algorithm_id end
  local is_same = gate.algorithm_id == binding.algorithm_id
  local was_rate, is_rate = gate.algorithm_id == RATE, binding.algorithm_id == RATE
  if was_rate ~= is_rate then
    list:clear()
    gate.responses = 0
    binding.module.start(gate, binding.algorithm, binding.settings, list, now_ns)
  else
    binding.module.change(gate, binding.algorithm, binding.settings, list, now_ns, is_same)
  end
  gate.settings_id, gate.algorithm_id, gate.since_ns = binding.settings_id, binding.algorithm_id, binding.bound_ns
  return true
end

-- Loads the state of a limit; begins it if there is none. Returns whether it is of the binding's algorithm, and the
-- limit that was stored, if any.
local function load(self, binding, name, list, now_ns)
  if state_layout.gate.decode(gate, self.dict:get(name)) then
    local before = gate.limit
    return adopt(binding, list, now_ns), before
  end
  state_layout.gate.clear(gate)
  list:clear()
  gate.settings_id, gate.algorithm_id, gate.since_ns = binding.settings_id, binding.algorithm_id, binding.bound_ns
  binding.module.start(gate, binding.algorithm, binding.settings, list, now_ns)
  return true, nil
end

local function ttl_of(key) return key == ALL and TTL_S or KEYED_TTL_S end

local function save(self, name, key) return self.dict:safe_set(name, state_layout.gate.encode(gate), ttl_of(key)) end

local function lock_of(binding, key) return lock.of(key == ALL and binding.rule.name or key) end

-- Runs `action(now_ns, list, name, is_ours)` on the state of a limit, and saves it. `is_ours`: whether the state is of
-- the binding's algorithm. Returns what the action returns; nil if the lock was taken, or there was no room. Reports a
-- change of the limit.
local function on_state(self, binding, key, action)
  local name, lock_name = count_name(binding.head, key), lock_of(binding, key)
  local ticket = lock.take(self.dict, lock_name, binding.deadline)
  if not ticket then return nil end
  local now_ns, list = monotonic_us() * 1000, responses_of(self.dict, name)
  local is_ours, before = load(self, binding, name, list, now_ns)
  local result = action(now_ns, list, name, is_ours)
  local after, reason = gate.limit, gate.reason
  local saved = save(self, name, key)
  lock.free(self.dict, lock_name, ticket)
  if not saved then
    overflow.log_full("calls of new keys pass under adaptive rules")
    return nil
  end
  if before and before ~= after then self.on_change(binding, key, before, after, reasons.TEXTS[reason]) end
  return result
end

local function load_ratio(self, binding, name)
  if not state_layout.ratio.decode(ratio, self.dict:get(name .. "p")) or ratio.classes ~= binding.classes then
    state_layout.ratio.clear(ratio)
    ratio.classes = binding.classes
  end
end

-- Removes calls that are in flight nowhere.
local function mend(self, name)
  self.leases:correct_calls(gate, self.calls_of[name] or 0)
  return self.leases:remove_dead_calls(gate)
end

-- Adds to the calls of this worker under a state.
local function add_calls(self, name, number)
  local calls = (self.calls_of[name] or 0) + number
  self.calls_of[name] = calls > 0 and calls or nil
end

-- Returns how many calls are in flight with this one; 0 if it is refused.
local function try_enter(self, binding, key, name, now_ns)
  if binding.module == concurrency_gate and gate.in_flight >= gate.limit then mend(self, name) end
  if binding.classes == 0 then return binding.module.try_enter(gate, now_ns) end
  load_ratio(self, binding, name)
  local entered = rejection_ratio.enter(ratio, binding.module, gate, now_ns, binding.priority, random())
  self.dict:safe_set(name .. "p", state_layout.ratio.encode(ratio), ttl_of(key))
  return entered
end

-- Returns the outcome of a call that is refused: it may pass as soon as any call ends.
local function refusal()
  local response_ns = gate.response_ns
  if response_ns == 0 or gate.algorithm_id == RATE then response_ns = DEFAULT_RESPONSE_NS end
  local wait_us = max(1, floor(response_ns / max(1, gate.limit) / 1000))
  return { 0, 0, wait_us, floor(response_ns / 1000), 0, wall_us(), 0 }
end

-- Returns the outcome of a call that passes and is not counted.
local function uncounted() return { 1, 0, 0, 0, 0, wall_us(), 0, current = 1, at_once = 0, degraded = true } end

-- Decides a call. Returns its Outcome, of which `current` is the limit at that moment, `at_once` how many calls that
-- lets begin at once, and `call`, of a call that begins, what `finish` takes.
function Engine:enter(charge)
  local binding, key = self:binding(charge.bound_limit), charge.key
  if not self.leases:hold(function() self:on_second() end) then return uncounted() end
  local outcome = on_state(self, binding, key, function(now_ns, _, name, is_ours)
    if not is_ours then return uncounted() end
    local entered = try_enter(self, binding, key, name, now_ns)
    local is_refused = entered == 0
    local result = is_refused and refusal() or nil
    if is_refused and binding.is_shadow then entered = binding.module.enter_above(gate) end
    if entered > 0 then self.leases:add_call(gate) end
    result = result or { 1, binding.module.room(gate, now_ns), 0, 0, 0, wall_us(), 0 }
    result.current, result.at_once = gate.limit, binding.module.units_at_once(gate)
    if entered > 0 then
      result.call = {
        binding = binding, key = key, entered = entered, started_ns = now_ns, within_limit = not is_refused,
      }
    end
    return result
  end)
  if outcome and outcome.call then add_calls(self, count_name(binding.head, key), 1) end
  return outcome or uncounted()
end

-- Ends a call under the settings that its rule has by now. Returns nil if that was not possible.
local function end_call(self, call, outcome, response_ns)
  local binding = self.newest[call.binding.rule.name] or call.binding
  local result = on_state(self, binding, call.key, function(now_ns, list, _, is_ours)
    if not self.leases:remove_call(gate) then return false end
    if not is_ours then
      gate.in_flight = gate.in_flight - 1
    elseif outcome == CANCELLED then
      binding.module.cancel(gate)
    else
      binding.module.leave(gate, binding.algorithm, binding.settings, list, call.entered, response_ns, now_ns, outcome)
    end
    return true
  end)
  if result ~= nil then add_calls(self, count_name(binding.head, call.key), -1) end
  return result
end

-- Ends a call as a success, dropped or ignored (concurrency_gate). Where that is not possible at once, because the lock
-- is taken, it is tried again.
function Engine:finish(call, outcome, response_ns)
  if end_call(self, call, outcome, response_ns) == nil then
    self.pending[#self.pending + 1] = { call, outcome, response_ns }
  end
end

-- Takes a call back: another rule refused it.
function Engine:cancel(call)
  self:finish(call, call.within_limit and CANCELLED or concurrency_gate.IGNORED, 0)
end

-- Ends the calls whose end could not be counted yet, and those of dead workers.
function Engine:on_second()
  local pending = self.pending
  self.pending = {}
  for _, each in ipairs(pending) do self:finish(each[1], each[2], each[3]) end
  for _, binding in pairs(self.keyless) do
    on_state(self, binding, ALL, function(_, _, name) return mend(self, name) end)
  end
end

-- Uses a new bundle: gives rules without a key their place, and moves what was learned into changed bounds.
function Engine:use(bundle)
  local previous = self.keyless
  self.keyless, self.newest = {}, {}
  for _, by_mode in pairs(bundle.bound_limits or {}) do
    for _, of_mode in pairs(by_mode) do
      for _, bound_limit in ipairs(of_mode) do
        local rule = bound_limit.rule
        if bound_limit.decided_by == "adaptive" and not self.newest[rule.name] then
          local binding = self:binding(bound_limit)
          self.newest[rule.name] = binding
          if not rule.key then
            self.keyless[rule.name] = binding
            on_state(self, binding, ALL, function() return true end)
          end
        end
      end
    end
  end
  for name, binding in pairs(previous) do
    if not self.keyless[name] then self.dict:expire(count_name(binding.head, ALL), REMOVED_TTL_S) end
  end
end

-- Returns { rule, limit, in_flight } of each rule without a key, by the name of the rule.
function Engine:rows()
  local rows, state = {}, state_layout.gate.new()
  for rule, binding in pairs(self.keyless) do
    if state_layout.gate.decode(state, self.dict:get(count_name(binding.head, ALL))) then
      rows[#rows + 1] = { rule = rule, limit = state.limit, in_flight = state.in_flight }
    end
  end
  table.sort(rows, function(one, other) return one.rule < other.rule end)
  return rows
end

return M
