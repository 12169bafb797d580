-- Falls back when Redis gives no decision: every request gets one within the rule's deadline, and never an error.
--
--   fallback.around(inner, shared_engine, membership, { fallback = "local" })
--
-- wraps the engine that asks Redis (`inner`) and is an Engine itself. It has the design and the law of
-- engines/layers/fallback in Python; docs/explanation/outages.md states the law. One nginx, all its workers together,
-- is one member: workers share the breakers, the shares and the accounts through the shared dict.
--
-- While Redis answers, requests go straight through. Three failures in a row open the breaker of a shard
-- (fallback/breaker.lua); then each charge is decided by its rule's fallback (fallback/degraded_answers.lua), and
-- exactly one call at a time probes Redis. When that is answered, a second begins in which accounts are settled
-- (fallback/settlement.lua): Redis is charged with what a share admitted alone before it decides about that count, and
-- a call must pass both, its share and Redis, because other members may not have noticed yet. Then Redis decides alone.
--
-- Unlike in Python, a share starts unused, unless it was used in an outage before (Python starts it with what
-- the last reply left); and slots of a share are kept until they are released, whatever Redis does meanwhile. A slot
-- that Redis granted without the reply reaching us is lost until its ttl.
--
-- Laws (tests/nginx/engines/test_fallback*.py, test_settlement.py): decide and acquire never return nil; a share is
-- charged only if the whole request passes; what one share granted goes back to that share or to none.

local breaker = require "resty.headgate.engines.fallback.breaker"
local clock = require "resty.headgate.clock"
local degraded_answers = require "resty.headgate.engines.fallback.degraded_answers"
local settlement = require "resty.headgate.engines.fallback.settlement"
local shard_breakers = require "resty.headgate.engines.fallback.shard_breakers"

local M = {}

local CALL, FALL_BACK = breaker.CALL, breaker.FALL_BACK
local SHARE_TIMEOUT_S = degraded_answers.SHARE_TIMEOUT_S
local NO_FENCE = 0 -- of no slot
local all_pass, mode_of, pass, refusal =
  degraded_answers.all_pass, degraded_answers.mode_of, degraded_answers.pass, degraded_answers.refusal

local Fallback = {}
Fallback.__index = Fallback

-- Returns whether a failure concerns one key or the request itself: it shows nothing about Redis, and costs no time.
local function is_about_request(failure) return failure.kind == "wrong" or failure.kind == "corrupt" end

-- Tells the breakers that a request on these routes failed.
local function note_failure(self, routes, failure)
  local breakers = self.breakers
  if is_about_request(failure) then breakers:log_rarely(failure.text) end
  local failed_shard = failure.key and breakers:shard_of(failure.key)
  for name, route in pairs(routes) do
    if is_about_request(failure) or failed_shard and failed_shard ~= name then
      breakers:on_withdrawal(name, route)
    else
      breakers:on_failure(name, route, failure)
    end
  end
end

-- Calls the action, which asks Redis about one charge, unless its breaker is open. Returns its result; or nil and a
-- Failure.
local function try(self, charge, action)
  local name = self.breakers:shard_of(charge.key)
  local route = self.breakers:choose_route(name)
  if route == FALL_BACK then return nil, { kind = "down", text = "Redis did not answer lately, and is not asked." } end
  local result, failure = action()
  if result == nil then
    note_failure(self, { [name] = route }, failure)
  else
    self.breakers:on_success(name, route)
  end
  return result, failure
end

-- Wraps an engine. `shared_engine`: the engine on the shared dict. `membership`: position(), and the Redis engine of
-- all members. `settings`: fallback, of rules that have none.
function M.around(inner, shared_engine, membership, settings)
  local server, default = membership.engine, settings.fallback or "local"
  local breakers = shard_breakers.for_server(server, shared_engine.dict)
  local self = setmetatable({ inner = inner, shared_engine = shared_engine, breakers = breakers }, Fallback)
  self.answers = degraded_answers.new(shared_engine, membership, breakers, default)
  self.settlement = settlement.new(server, shared_engine, breakers,
    function(charge, action) return try(self, charge, action) end)
  return self
end

-- Notes that shares alone admitted these charges.
local function note_unsettled(self, shared, by_share)
  for i, charge in ipairs(shared) do self.settlement:note(charge, by_share[i]) end
end

-- Returns the outcomes without Redis.
local function decide_without_redis(self, charges, commit)
  local answers = self.answers
  local shared, others_pass = answers:shared_charges(charges)
  local charges_shares = others_pass and commit or 0
  local by_share = answers:decide_by_share(shared, charges_shares)
  if charges_shares == 1 and all_pass(by_share) then note_unsettled(self, shared, by_share) end
  return answers:merge(charges, shared, by_share)
end

-- Returns the route of each shard; nil if one of them falls back.
local function routes_of(self, charges)
  local breakers, routes = self.breakers, {}
  for _, charge in ipairs(charges) do
    local name = breakers:shard_of(charge.key)
    routes[name] = routes[name] or breakers:choose_route(name)
    if routes[name] == FALL_BACK then
      for claimed, route in pairs(routes) do breakers:on_withdrawal(claimed, route) end
      return nil
    end
  end
  return routes
end

-- Tells the breakers that a request on these routes was answered. A shard that gave no answer, and had only shadows to
-- decide, proves nothing.
local function note_success(self, routes, charges, outcomes)
  local has_answered = {}
  for i, charge in ipairs(charges) do
    local outcome = outcomes and outcomes[i]
    if not outcomes or outcome and not outcome.degraded then has_answered[self.breakers:shard_of(charge.key)] = true end
  end
  for name, route in pairs(routes) do
    if has_answered[name] then self.breakers:on_success(name, route) else self.breakers:on_withdrawal(name, route) end
  end
end

-- Settles the accounts of these charges. Returns whether all are settled; nil and a Failure if Redis does not answer.
local function settle(self, shared, deadline)
  for _, charge in ipairs(shared) do
    local is_settled, failure = self.settlement:settle(charge, deadline, (deadline or 1) * 1000000 / 4)
    if not is_settled then return is_settled, failure end
  end
  return true
end

local function must_pass_both(self, routes)
  for name, route in pairs(routes) do
    if self.breakers:must_pass_both(name, route) then return true end
  end
  return false
end

-- Probes Redis, because the share refused the charge that was to be the probe.
local function probe(self, routes, charges, deadline)
  for name, route in pairs(routes) do
    if route ~= CALL then
      for _, charge in ipairs(charges) do
        if self.breakers:shard_of(charge.key) == name then
          local peeked, failure = self.settlement:probe(charge, deadline)
          if peeked then
            self.breakers:on_success(name, route)
          else
            note_failure(self, { [name] = route }, failure)
          end
          break
        end
      end
    end
  end
end

-- Gives back what the shares admitted and Redis did not.
local function give_back(self, shared, by_share)
  for i, outcome in ipairs(by_share) do
    if outcome.degraded == "local" and shared[i].cost > 0 then
      self.shared_engine:refund(shared[i].share_charge, outcome, SHARE_TIMEOUT_S)
    end
  end
end

local function live_pass(charges, outcomes)
  for i, charge in ipairs(charges) do
    if not charge.bound_limit.options.shadow and not (outcomes[i] and outcomes[i][1] == 1) then return false end
  end
  return true
end

-- Decides when something is wrong: a failure was counted, a breaker is not closed, or accounts are unsettled.
local function decide_carefully(self, charges, commit, deadline)
  local routes = routes_of(self, charges)
  if not routes then return decide_without_redis(self, charges, commit) end
  local shared, others_pass = self.answers:shared_charges(charges)
  local is_settled, failure = settle(self, shared, deadline)
  if is_settled == nil then
    note_failure(self, routes, failure)
    return decide_without_redis(self, charges, commit)
  elseif not is_settled then
    note_success(self, routes, charges)
    return decide_without_redis(self, charges, commit)
  end
  local by_share = {}
  if must_pass_both(self, routes) then
    by_share = self.answers:decide_by_share(shared, commit)
    if not all_pass(by_share) then
      probe(self, routes, charges, deadline)
      return self.answers:merge(charges, shared, by_share)
    end
  end
  local outcomes, note = self.inner:decide(charges, commit, deadline)
  if not outcomes then
    note_failure(self, routes, note)
    if by_share[1] and others_pass then
      if commit == 1 then note_unsettled(self, shared, by_share) end
      return self.answers:merge(charges, shared, by_share)
    end
    give_back(self, shared, by_share)
    return decide_without_redis(self, charges, commit)
  end
  if note == "unasked" then
    for name, route in pairs(routes) do self.breakers:on_withdrawal(name, route) end
  else
    note_success(self, routes, charges, outcomes)
  end
  if not live_pass(charges, outcomes) then give_back(self, shared, by_share) end
  return outcomes
end

-- Returns the indexes of the charges to request: all but shadows that would delay live charges elsewhere, because their
-- shard does not answer.
local function reachable(self, charges)
  local breakers, live, indexes = self.breakers, {}, {}
  for _, charge in ipairs(charges) do
    if not charge.bound_limit.options.shadow then live[breakers:shard_of(charge.key)] = true end
  end
  for i, charge in ipairs(charges) do
    local name = breakers:shard_of(charge.key)
    if next(live) == nil or live[name] or breakers:must_call(name) then indexes[#indexes + 1] = i end
  end
  return indexes
end

function Fallback:decide(charges, commit, deadline)
  if self.breakers:are_closed() then
    local outcomes, failure = self.inner:decide(charges, commit, deadline)
    if outcomes then return outcomes end
    return self:decide_after_failure(charges, commit, failure)
  end
  local indexes = reachable(self, charges)
  if #indexes == #charges then return decide_carefully(self, charges, commit, deadline) end
  local selected, outcomes = {}, {}
  for i, index in ipairs(indexes) do selected[i] = charges[index] end
  local results = selected[1] and decide_carefully(self, selected, commit, deadline) or {}
  for i = 1, #charges do outcomes[i] = pass() end
  for i, index in ipairs(indexes) do outcomes[index] = results[i] end
  return outcomes
end

-- Decides without Redis after a request that failed while all breakers were closed.
function Fallback:decide_after_failure(charges, commit, failure)
  local routes = {}
  for _, charge in ipairs(charges) do routes[self.breakers:shard_of(charge.key)] = CALL end
  note_failure(self, routes, failure)
  return decide_without_redis(self, charges, commit)
end

-- Decides one charge.
function Fallback:take(charge, deadline)
  if not self.breakers:are_closed() then return self:decide({ charge }, 1, deadline)[1] end
  local outcome, failure = self.inner:take(charge, deadline)
  if outcome then return outcome end
  return self:decide_after_failure({ charge }, 1, failure)[1]
end

-- Returns the outcomes of charges that are refused without asking, at their indexes; nil if none is. While Redis does
-- not answer, none is: shares decide.
function Fallback:refused(charges)
  if not self.breakers:are_closed() then return nil end
  return self.inner:refused(charges)
end

-- Sends one request about one charge, unless its breaker is open: its result, or nil and a Failure.
local function try_inner(self, charge, method, ...)
  local inner, arguments = self.inner, { ... }
  return try(self, charge, function() return inner[method](inner, charge, unpack(arguments)) end)
end

local function refund_share(self, charge, outcome)
  local share_charge = charge.share_charge
  local refunded, failure = self.shared_engine:refund(share_charge, outcome, SHARE_TIMEOUT_S)
  if not refunded then return nil, failure end
  self.settlement:reduce(share_charge, charge.cost)
  return self.answers:degraded_outcome(charge, refunded, false)
end

function Fallback:refund(charge, outcome, deadline)
  if outcome.degraded == "local" and charge.share_charge then return refund_share(self, charge, outcome) end
  if outcome.degraded then return outcome end
  return try_inner(self, charge, "refund", outcome, deadline)
end

-- Returns whether a slot of Redis may be requested although something is wrong. A slot whose reply is lost is lost
-- until its ttl, so to release one that nobody holds shows first that Redis is there. While accounts are settled, a
-- slot must be free in the share, too.
local function may_request_slot(self, charge, deadline)
  if try_inner(self, charge, "release", NO_FENCE, deadline) == nil then return false end
  local answers, settles = self.answers, self.breakers:must_pass_both(self.breakers:shard_of(charge.key), CALL)
  if not settles or mode_of(charge, answers.default) ~= "local" then return true end
  local outcome = answers:acquire(charge)
  local share_charge = charge.share_charge
  charge.share_charge = nil
  if outcome[1] ~= 1 then return false end
  self.shared_engine:release(share_charge, outcome[7], SHARE_TIMEOUT_S)
  return true
end

function Fallback:acquire(charge, deadline)
  charge.share_charge = nil
  if not self.breakers:are_closed() and not may_request_slot(self, charge, deadline) then
    return self.answers:acquire(charge)
  end
  return try_inner(self, charge, "acquire", deadline) or self.answers:acquire(charge)
end

function Fallback:renew(charge, fence, deadline)
  if charge.share_charge then return self.shared_engine:renew(charge.share_charge, fence, SHARE_TIMEOUT_S) end
  return try_inner(self, charge, "renew", fence, deadline)
end

function Fallback:release(charge, fence, deadline)
  if charge.share_charge then return self.shared_engine:release(charge.share_charge, fence, SHARE_TIMEOUT_S) end
  return try_inner(self, charge, "release", fence, deadline)
end

local logged_at = -math.huge
local LOG_INTERVAL_S = 60 -- seconds

-- Returns outcomes where not even the shared dict gives a decision: local counts as deny.
function M.unavailable(charges, failure)
  local at = clock.now()
  if at < logged_at or at - logged_at >= LOG_INTERVAL_S then
    logged_at = at
    ngx.log(ngx.ERR, "headgate: rules allow or deny without counting. ", failure and failure.text or "")
  end
  local outcomes = {}
  for i, charge in ipairs(charges) do
    outcomes[i] = mode_of(charge, "local") == "allow" and pass() or refusal()
  end
  return outcomes
end

return M
