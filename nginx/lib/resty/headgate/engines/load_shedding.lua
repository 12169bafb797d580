-- Load shedding: far above a limit, requests are refused at random before Redis is asked.
--
-- A flood of 10,000/s on a limit of 200/s sends 10,000 requests for 200 replies that matter, and under a fixed window
-- all 200 go to the clients that came in its first 20 ms. Here most of the flood is shed by a throw of dice: each
-- request may ask Redis with the same probability, so small that Redis is asked for about as much as it has to give.
-- shed_rate.lua computes how much that is at any time. Redis decides: every request that passes was allowed by it.
--
-- The state of a key is in the shared dict, for all workers: r:<count> holds the remaining units of the last reply and
-- the demand, and n:<count> counts the units that were demanded, shed or not; ten times a second the difference is the
-- demand. Both begin when Redis refuses the key, so a key that never was at its limit costs nothing, and end 2 s after
-- the last request; nothing is evicted for them. A worker trusts the state that it has read until nginx's clock moves
-- on (a millisecond), or it asks Redis itself. Shedding begins 20 ms after the refusal, if the demand is at least twice
-- the limit (this nginx's part of it) and 20 units a second: less than that disturbs nobody.
--
-- A request that is shed is refused by the rule, with nothing remaining, and a retry_after that is random between
-- nothing and the limit's reset, or a second if that is longer: any instant is as good as any other, and the clients
-- should not all meet again.
--
-- Laws (tests/nginx/engines/test_load_shedding.py, measured on floods of 50 times the limit):
--   - Redis is asked at most 3 times the limit, however large the flood (but for its first moments: until the first
--     refusal arrives, every request asks);
--   - at least 98 % of the limit are used, unless the machine itself is paused at the end of a window;
--   - every request has the same chance, whenever it arrives, on whatever connection, at whatever worker; at several
--     nginx, as far as they get the same flood;
--   - the last two do not hold for buckets of fewer than 8 units: the next request takes the unit, a worker that wakes
--     more often has the next request more often, and each unit waits for the round trip to Redis (200/s burst 1: 85 %
--     used);
--   - the remaining units of a reply are trusted for a second, or for two units' time if that is longer: then a request
--     asks;
--   - only live rules in Redis without lockout, overrides and pauses are shed, and no request with a lockout or a
--     shadow among its charges: those have refusals to count;
--   - one shed charge refuses the request: the others were not asked, and have no outcome (outcomes[i] is nil). Such
--     outcomes come with the note "unasked": they do not prove that Redis answers.
--
-- It wraps the denial cache, not the reverse: what that refuses is demand, too. It also wraps prefetching, for the same
-- laws: prefetched units count as available until a request gets them. A request with slots or units to take first
-- throws the dice before that (`refused`, called by decide.lua). Workers must have different random seeds.

local clock = require "resty.headgate.clock"
local ffi = require "ffi"
local shed_rate = require "resty.headgate.engines.load_shedding.shed_rate"

local M = {}

local STATE_TTL_S = 2 -- seconds
local FIRST_INTERVAL_US, INTERVAL_US = 20000, 100000
local SMOOTHING = 0.1
local MIN_DEMAND = 20 / 1000000 -- units per microsecond
local MIN_RETRY_RANGE_US = 1000000
local COUNT_BATCH = 16 -- units that a worker counts before it updates the dict
local STATE_BYTES = shed_rate.STATE_SIZE * 8
local SHED = { __index = { shed = true } } -- marks an outcome without a field of its own

local DEMAND, DEMAND_MARK, DEMAND_MARK_AT = shed_rate.DEMAND, shed_rate.DEMAND_MARK, shed_rate.DEMAND_MARK_AT
local chance, flooded = shed_rate.chance, shed_rate.flooded
local observe, note_request = shed_rate.observe, shed_rate.note_request
local floor, max, random = math.floor, math.max, math.random
local cast, copy, text_of, now_us = ffi.cast, ffi.copy, ffi.string, clock.monotonic_us
local CONST_DOUBLES = ffi.typeof("const double *")

local state = ffi.new("double[?]", shed_rate.STATE_SIZE) -- scratch space, valid until the worker yields

local LoadShedding = {}
LoadShedding.__index = LoadShedding

-- Wraps an engine. `inner`: an Engine. `dict`: a shared dict; our keys begin with r: and n:. `membership`: position()
-- returns count and rank.
function M.around(inner, dict, membership)
  return setmetatable({ inner = inner, dict = dict, membership = membership }, LoadShedding)
end

-- Prepares shedding for a bound limit; false if its charges are not shed.
local function bind(bound_limit)
  local options = bound_limit.options
  local may_shed = not options.shadow and not options.lockout and not options.overrides and not options.pausable
  local plan = may_shed and shed_rate.plan(bound_limit.limit)
  local name_suffix = bound_limit.limit.text .. ":" .. bound_limit.head
  bound_limit.shedding = plan and {
    plan = plan, state_name = "r:" .. name_suffix, count_name = "n:" .. name_suffix, uncounted = 0,
    cached = ffi.new("double[?]", shed_rate.STATE_SIZE), cached_key = nil, cached_at = 0, -- the last state read
  } or false
  return bound_limit.shedding
end

-- Loads the state of a key from the dict into `state`; false if there is none.
local function load_state(self, shedding, key)
  local text = self.dict:get(shedding.state_name .. key)
  if not text then return false end
  copy(state, cast(CONST_DOUBLES, text), STATE_BYTES)
  return true
end

-- Loads the state for reading only: one that was read in the same millisecond is good enough.
local function load_cached_state(self, shedding, key)
  local at = clock.now()
  if shedding.cached_at == at and shedding.cached_key == key then
    copy(state, shedding.cached, STATE_BYTES)
    return true
  end
  if not load_state(self, shedding, key) then return false end
  copy(shedding.cached, state, STATE_BYTES)
  shedding.cached_key, shedding.cached_at = key, at
  return true
end

-- Saves `state` in the dict.
local function save_state(self, shedding, key)
  shedding.cached_key = nil
  self.dict:safe_set(shedding.state_name .. key, text_of(state, STATE_BYTES), STATE_TTL_S)
end

-- Counts the demand of a request. A flood is mostly of one key: this worker counts it by itself, and updates the dict
-- now and then.
local function count_demand(self, shedding, charge)
  if shedding.key ~= charge.key then
    if shedding.uncounted > 0 then self.dict:incr(shedding.count_name .. shedding.key, shedding.uncounted) end
    shedding.key, shedding.uncounted = charge.key, 0
  end
  shedding.uncounted = shedding.uncounted + charge.cost
  if shedding.uncounted >= COUNT_BATCH then
    self.dict:incr(shedding.count_name .. shedding.key, shedding.uncounted)
    shedding.uncounted = 0
  end
end

local function sharers(self) return max(1, (self.membership:position())) end

-- Returns whether the demand is to be measured.
local function is_due(now)
  return now - state[DEMAND_MARK_AT] > (state[DEMAND] == 0 and FIRST_INTERVAL_US or INTERVAL_US)
end

-- Measures the demand since the last time, unless another worker just has.
local function measure(self, shedding, key, now)
  local demanded = self.dict:get(shedding.count_name .. key)
  if not demanded or not load_state(self, shedding, key) then
    self.dict:delete(shedding.state_name .. key) -- without its count it is useless
    return
  end
  if not is_due(now) then return end
  local measured = (demanded - state[DEMAND_MARK]) / (now - state[DEMAND_MARK_AT])
  local demand = state[DEMAND]
  if demand == 0 or measured > 2 * demand then
    demand = measured
  else
    demand = demand + SMOOTHING * (measured - demand)
  end
  state[DEMAND], state[DEMAND_MARK], state[DEMAND_MARK_AT] = demand, demanded, now
  shed_rate.update_sharers(shedding.plan, state, sharers(self), now)
  self.dict:expire(shedding.count_name .. key, STATE_TTL_S)
  save_state(self, shedding, key)
end

-- Counts this request, and throws the dice: whether it may ask. `state` is that of its key.
local function is_admitted(self, shedding, charge, now)
  count_demand(self, shedding, charge)
  if is_due(now) then measure(self, shedding, charge.key, now) end
  if not flooded(shedding.plan, state, MIN_DEMAND) then return true end
  return random() < chance(shedding.plan, state, now, charge.cost)
end

-- Returns the outcome of a request that is shed; `state` is that of the key.
local function refusal(shedding, now)
  local reset = shed_rate.reset(shedding.plan, state, now)
  local wait = floor(random() * max(reset, MIN_RETRY_RANGE_US)) + 1
  return setmetatable({ 0, 0, wait, reset, 0, clock.wall_us(), 0 }, SHED)
end

-- Begins to count the demand of a key that Redis has refused.
local function begin(self, shedding, charge, outcome, sent_at, now)
  shed_rate.begin(state, now, sharers(self))
  observe(shedding.plan, state, charge.cost, outcome, sent_at, now)
  if self.dict:safe_add(shedding.count_name .. charge.key, 0, STATE_TTL_S) then
    self.dict:safe_add(shedding.state_name .. charge.key, text_of(state, STATE_BYTES), STATE_TTL_S)
  end
end

-- Updates the state of a key by an outcome; begins to count a key that was refused.
local function observe_outcome(self, charge, outcome, sent_at)
  local shedding = charge.bound_limit.shedding
  if not shedding or not outcome or charge.cost <= 0 then return end
  local now = now_us()
  if load_state(self, shedding, charge.key) then
    observe(shedding.plan, state, charge.cost, outcome, sent_at, now)
    save_state(self, shedding, charge.key)
  elseif outcome[1] == 0 then
    begin(self, shedding, charge, outcome, sent_at, now)
  end
end

-- Notes that this charge is sent to Redis.
local function note_charge_request(self, charge, now)
  local shedding = charge.bound_limit.shedding
  if not shedding or not load_state(self, shedding, charge.key) then return end
  note_request(shedding.plan, state, now, charge.cost)
  save_state(self, shedding, charge.key)
end

local function must_count(charge)
  local options = charge.bound_limit.options
  return options.shadow or options.lockout ~= nil
end

local function counts_refusals(charges)
  for i = 1, #charges do
    if must_count(charges[i]) then return true end
  end
  return false
end

-- Returns whether the demand of this charge is counted; and if it is shed, its outcome. The dice are thrown once for a
-- charge.
local function decide_shedding(self, charge, now)
  if charge.admitted ~= nil then return charge.admitted, nil end
  local shedding = charge.bound_limit.shedding
  if shedding == nil then shedding = bind(charge.bound_limit) end
  if not shedding or charge.cost <= 0 or not load_cached_state(self, shedding, charge.key) then return false, nil end
  if is_admitted(self, shedding, charge, now) then return true, nil end
  return true, refusal(shedding, now)
end

local function all_pass(charges, outcomes)
  for i = 1, #charges do
    if not outcomes[i] or outcomes[i][1] ~= 1 then return false end
  end
  return true
end

-- Returns the outcome of the first charge that is shed, or that the inner engine refuses without asking; nil if none
-- is. Charges that are not shed here are not shed later on.
function LoadShedding:refused(charges)
  local now = now_us()
  for i = 1, #charges do
    local charge = charges[i]
    if not must_count(charge) then
      local is_counted, outcome = decide_shedding(self, charge, now)
      if outcome then return { [i] = outcome } end
      charge.admitted = is_counted
    end
  end
  return self.inner:refused(charges)
end

function LoadShedding:decide(charges, commit, deadline)
  if commit ~= 1 or counts_refusals(charges) then return self.inner:decide(charges, commit, deadline) end
  local now, any_counted = now_us(), false
  for i = 1, #charges do
    local is_counted, outcome = decide_shedding(self, charges[i], now)
    if outcome then return { [i] = outcome }, "unasked" end
    any_counted = any_counted or is_counted
  end
  if any_counted then
    for i = 1, #charges do note_charge_request(self, charges[i], now) end
  end
  local outcomes, note = self.inner:decide(charges, commit, deadline)
  if not outcomes then return nil, note end
  if any_counted or not all_pass(charges, outcomes) then
    for i = 1, #charges do observe_outcome(self, charges[i], outcomes[i], now) end
  end
  return outcomes, note
end

-- Decides one charge.
function LoadShedding:take(charge, deadline)
  if must_count(charge) then return self.inner:take(charge, deadline) end
  local now = now_us()
  local is_counted, outcome = decide_shedding(self, charge, now)
  if outcome then return outcome, "unasked" end
  if is_counted then note_charge_request(self, charge, now) end
  local note
  outcome, note = self.inner:take(charge, deadline)
  if not outcome then return nil, note end
  if is_counted or outcome[1] ~= 1 then observe_outcome(self, charge, outcome, now) end
  return outcome, note
end

function LoadShedding:refund(charge, outcome, deadline) return self.inner:refund(charge, outcome, deadline) end

function LoadShedding:acquire(charge, deadline) return self.inner:acquire(charge, deadline) end

function LoadShedding:renew(charge, fence, deadline) return self.inner:renew(charge, fence, deadline) end

function LoadShedding:release(charge, fence, deadline) return self.inner:release(charge, fence, deadline) end

return M
