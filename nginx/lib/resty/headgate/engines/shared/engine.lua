-- The engine on a shared dict: the same models, exact over all workers of one nginx.
--
-- A decision takes the locks of its counts, reads them, runs the model, writes, and frees the locks; in between the
-- worker never yields. The real time is read while the locks are held, so a later decision sees no earlier time;
-- nginx's cached clock differs between workers, and would mint units (clock.lua). A single charge without lockout takes
-- the short path below; everything else goes through take_all.lua.
--
-- Everything that can fail is done before a lock is taken: the windows of a calendar are known then.
--
-- A worker that is killed loses nothing but its current decision, whose charges it may have saved in part. Counts
-- outlive a reload, and end with nginx.
--
-- Laws (tests/nginx/engines/shared):
--   - outcomes are those of every other engine, at every microsecond (test_parity.py, test_vectors.py);
--   - however many workers decide at once, exactly the limit passes (test_two_workers.py, ../test_worker_clocks.py);
--   - in a full dict no call passes uncounted and no live count is dropped (test_overflow.py).

local bound_limits = require "resty.headgate.engines.shared.bound_limits"
local clock = require "resty.headgate.clock"
local lock = require "resty.headgate.engines.shared.lock"
local overflow = require "resty.headgate.engines.shared.overflow"
local shared_dict = require "resty.headgate.ffi.shared_dict"
local slot_leases = require "resty.headgate.engines.shared.slot_leases"
local take_all = require "resty.headgate.engines.shared.take_all"

local M = { reason_unsupported = bound_limits.reason_unsupported }

local Engine = {}
Engine.__index = Engine

local now_us = clock.wall_us
local count_name, limit_at = bound_limits.count_name, bound_limits.limit_at
local lock_of, take, free = lock.of, lock.take, lock.free

-- `settings`: dict (its name), prefix.
function M.new(settings)
  local name = settings.dict or "headgate"
  local dict = shared_dict.open(name)
  if not dict then
    error('There is no shared dict "' .. name .. '": write lua_shared_dict ' .. name .. " 20m; in the http block.", 0)
  end
  local prepared, failure = lock.prepare(dict)
  if not prepared then error('The shared dict "' .. name .. '" cannot hold its locks: ' .. failure .. ".", 0) end
  return setmetatable({
    dict = dict, prefix = settings.prefix or "hg", zones = {}, bindings = setmetatable({}, { __mode = "k" }),
    overflow_counts = {},
  }, Engine)
end

local function first(outcomes, failure) return outcomes and outcomes[1], failure end

-- Returns the binding of a bound limit (bound_limits.lua).
function Engine:binding(bound_limit)
  local binding = self.bindings[bound_limit]
  if not binding then
    binding = bound_limits.bind(self.dict, bound_limit, self.prefix)
    self.bindings[bound_limit] = binding
  end
  return binding
end

-- Uses a new bundle: reserves the overflow counts of bound limits that count here.
function Engine:use(bundle)
  self.zones = bundle.zones or {}
  local previous, overflow_counts = self.overflow_counts, {}
  for _, by_mode in pairs(bundle.bound_limits or {}) do
    for _, of_mode in pairs(by_mode) do
      for _, bound_limit in ipairs(of_mode) do
        if bound_limit.on_shared_dict then
          local overflow_count = self:binding(bound_limit).overflow_count
          overflow_counts[overflow_count.name] = overflow_count
          overflow_count:keep()
        end
      end
    end
  end
  for name, overflow_count in pairs(previous) do
    if not overflow_counts[name] then overflow_count:expire() end
  end
  self.overflow_counts = overflow_counts
end

-- Decides one charge: its Outcome; or nil and a Failure.
function Engine:take(charge, deadline)
  local dict, bound_limit = self.dict, charge.bound_limit
  local binding = self.bindings[bound_limit] or self:binding(bound_limit)
  if not binding.is_plain then return first(take_all.decide(self, { charge }, 1, deadline)) end
  local name, lock_name = count_name(binding.head, charge.key), lock_of(charge.key)
  if binding.calendar then limit_at(binding, self.zones, now_us()) end
  local ticket, failure = take(dict, lock_name, deadline)
  if not ticket then return nil, failure end
  local at_us = now_us()
  local limit = binding.calendar and limit_at(binding, self.zones, at_us) or binding.limit
  local before = binding.load(dict, name, binding, limit, at_us)
  local outcome, after = binding.decide(limit, before, at_us, charge.cost, -1)
  local saved = true
  if after ~= before then
    saved = binding.save(dict, name, binding, limit, after, at_us)
    if not saved and before then binding.save(dict, name, binding, limit, before, at_us) end
  end
  free(dict, lock_name, ticket)
  if saved then return outcome end
  return first(take_all.decide(self, { charge }, 1, deadline))
end

-- Decides several charges: the Outcome of each, in order; or nil and a Failure. commit: 1, or 0 to peek.
function Engine:decide(charges, commit, deadline)
  if commit == 1 and charges[2] == nil then
    local outcome, failure = self:take(charges[1], deadline)
    return outcome and { outcome }, failure
  end
  return take_all.decide(self, charges, commit, deadline)
end

-- Runs `action(at_us)` while the lock of a key is held.
local function locked(self, key, deadline, action)
  local lock_name = lock_of(key)
  local ticket, failure = take(self.dict, lock_name, deadline)
  if not ticket then return nil, failure end
  local result, act_failure = action(now_us())
  free(self.dict, lock_name, ticket)
  return result, act_failure
end

local function dict_full(name)
  return { kind = "wrong", text = "The shared dict is full: " .. name .. " has no room." }
end

-- Refunds a charge; returns the Outcome after it.
function Engine:refund(charge, outcome, deadline)
  local binding = self:binding(charge.bound_limit)
  local store, name, key = self.dict, count_name(binding.head, charge.key), charge.key
  if outcome.overflow then
    store = binding.overflow_count
    name, key = store.name, store.name
  end
  local was_charged = outcome[1] == 1 and charge.cost > 0
  local receipt = {
    cost = charge.cost, at_us = outcome[6], reset_after_us = outcome[4], delay_us = outcome[5], mark = outcome[7],
    returned = 0,
  }
  limit_at(binding, self.zones, now_us())
  return locked(self, key, deadline, function(at_us)
    local limit = limit_at(binding, self.zones, at_us)
    local before = binding.load(store, name, binding, limit, at_us)
    local after = was_charged and binding.model.refund(limit, before, at_us, charge.cost, receipt, false) or nil
    if after and not binding.save(store, name, binding, limit, after, at_us) then
      binding.save(store, name, binding, limit, before, at_us)
      return nil, dict_full(name)
    end
    local result = binding.decide(limit, after or before, at_us, 0, -1)
    if outcome.overflow then result.overflow = true end
    return result
  end)
end

-- Acquires a slot: an Outcome, whose mark is the fence; or nil and a Failure.
function Engine:acquire(charge, deadline)
  local binding = self:binding(charge.bound_limit)
  local name = count_name(binding.head, charge.key)
  local fences = lock.fence_of(lock_of(charge.key))
  local function acquire_slot(at_us)
    return slot_leases.acquire(self.dict, self.dict, name, binding.limit, at_us, fences)
  end
  local outcome, failure = locked(self, charge.key, deadline, acquire_slot)
  if not outcome and not failure and overflow.sweep(self.dict) then
    outcome, failure = locked(self, charge.key, deadline, acquire_slot)
  end
  if outcome or failure then return outcome, failure end

  local overflow_count = binding.overflow_count
  local overflow_name = overflow_count.name
  local overflow_fences = lock.fence_of(lock_of(overflow_name))
  overflow.log_full("new keys are counted together, as " .. overflow_name)
  outcome, failure = locked(self, overflow_name, deadline, function(at_us)
    return slot_leases.acquire(self.dict, overflow_count, overflow_name, binding.limit, at_us, overflow_fences)
  end)
  if not outcome then return nil, failure or dict_full(overflow_name) end
  outcome.overflow = true
  if outcome[1] == 1 then outcome[7] = -outcome[7] end
  return outcome
end

local function on_lease(self, operation, charge, fence, deadline)
  local binding = self:binding(charge.bound_limit)
  local store, name, key = self.dict, count_name(binding.head, charge.key), charge.key
  if fence < 0 then
    store, fence = binding.overflow_count, -fence
    name, key = store.name, store.name
  end
  return locked(self, key, deadline, function(at_us) return operation(store, name, binding.limit, fence, at_us) end)
end

-- Renews a lease: whether it is still held, now for its whole ttl; or nil and a Failure.
function Engine:renew(charge, fence, deadline) return on_lease(self, slot_leases.renew, charge, fence, deadline) end

-- Releases a lease: whether it was still held; or nil and a Failure.
function Engine:release(charge, fence, deadline) return on_lease(self, slot_leases.release, charge, fence, deadline) end

return M
