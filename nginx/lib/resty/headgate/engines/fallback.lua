-- Falls back when Redis gives no decision: every request gets one within the rule's deadline, and never an error.
--
--   fallback.around(inner, shared_engine, membership, { fallback = "local" })
--
-- wraps the engine that asks Redis (`inner`) and is an Engine itself. While Redis answers, requests go straight
-- through. When it does not, or its breaker expects that it would not (breaker.lua), each charge is decided by its
-- rule's fallback:
--
--   allow   it passes, with nothing remaining
--   deny    it is refused for a second
--   local   it is decided by this nginx's share of the limit, among all members (membership.lua), on the shared dict,
--           all workers together, under names that nothing else has
--
-- The rules of one request each keep their own fallback. One that refuses refuses for all, and no share is charged
-- then. Shadows pass and are not counted. Meanwhile there are no lockouts, and a key with an override has a share of
-- its rule's limit. Slots are slots of a share, too; a request that holds one keeps it until it is released, whatever
-- Redis does meanwhile. A slot that Redis granted without the reply reaching us is lost until its ttl.
--
-- Outcomes of a fallback are `degraded`: "local" if a share was charged, which can be refunded, and true otherwise. The
-- charge on the share is stored on its charge (charge.share_charge), so refunds and releases go to the engine that
-- decided.
--
-- How much is admitted. The counts of Redis and of the shares are independent, and each keeps its own: a share is not
-- fresh again at the next outage, and the counts of Redis are not after one, unless it lost its memory. In any window:
--
--   by Redis              at most the limit; once more for each time that it lost its memory
--   by all shares         at most the limit, as long as the members agree on their number and ranks. Where only their
--                         number is configured (nodes=N): at most its rate, and one unit at once for each member if its
--                         burst is less
--   together              at most twice the limit, however often Redis comes and goes; with allow, anything
--
-- (Of a smooth limit each share begins with the one unit that passes at once; and a share of a sliding log copies its
-- timestamps at each decision, so one of many thousand units is slow.)
--
-- Laws (tests/nginx/engines/test_fallback*.py): as above; decide and acquire never return nil; a share is charged only
-- if the whole request passes; what one share granted goes back to that share or to none.

local breaker = require "resty.headgate.engines.fallback.breaker"
local clock = require "resty.headgate.clock"
local limit_share = require "resty.headgate.engines.fallback.limit_share"

local M = {}

local RETRY_AFTER_US = 1000000 -- by then Redis has been probed again
local SHARE_TIMEOUT_S = 0.05 -- that a share may wait for its lock

local now_us = clock.wall_us

local Fallback = {}
Fallback.__index = Fallback

-- Wraps an engine. `shared_engine`: the engine on the shared dict. `membership`: position(), and the Redis engine of
-- all members. `settings`: fallback, of rules that have none.
function M.around(inner, shared_engine, membership, settings)
  return setmetatable({
    inner = inner, shared_engine = shared_engine, membership = membership, default = settings.fallback or "local",
    breakers = breaker.for_server(membership.engine), shares = setmetatable({}, { __mode = "k" }),
  }, Fallback)
end

local function pass() return { 1, 0, 0, 0, 0, now_us(), 0, degraded = true } end

local function refusal() return { 0, 0, RETRY_AFTER_US, 0, 0, now_us(), 0, degraded = true } end

local function mode_of(charge, default)
  local options = charge.bound_limit.options
  return options.shadow and "allow" or options.fallback or default
end

-- Binds this nginx's share of a limit; nil if it has no share.
local function bind_share(bound_limit, count, rank)
  local share = limit_share.share(bound_limit.limit, count, rank)
  if not share then return nil end
  local options = bound_limit.options
  return {
    rule = bound_limit.rule, name = bound_limit.name, limit = share, head = "f:" .. bound_limit.head,
    decided_by = "shared", on_shared_dict = true,
    options = { rule = options.rule, shadow = false, overrides = false, deadline = options.deadline },
  }
end

-- Returns the charge on the share, and stores it on the charge itself; nil if this nginx has no share.
local function charge_share(self, charge)
  local bound_limit, count, rank = charge.bound_limit, self.membership:position()
  local cached = self.shares[bound_limit]
  if not cached or cached.count ~= count or cached.rank ~= rank then
    cached = { count = count, rank = rank, bound_limit = bind_share(bound_limit, count, rank) }
    self.shares[bound_limit] = cached
  end
  local share = cached.bound_limit
  charge.share_charge = share and { bound_limit = share, key = charge.key, cost = charge.cost }
  return charge.share_charge
end

-- Turns the outcome of a share into ours. A cost that a share can never hold may fit the whole limit.
local function degraded_outcome(charge, outcome, charged)
  outcome.degraded = charged and "local" or true
  if outcome[1] ~= 1 and outcome[3] < 0 and charge.cost <= charge.bound_limit.limit.fresh then
    outcome[3] = RETRY_AFTER_US
  end
  return outcome
end

local function all_pass(outcomes)
  for i = 1, #outcomes do
    if outcomes[i][1] ~= 1 then return false end
  end
  return true
end

-- Writes the outcomes of the shares; refusals, if the dict gives none.
local function decide_by_shares(self, charges, indexes, commit, outcomes)
  local share_charges = {}
  for i, index in ipairs(indexes) do share_charges[i] = charges[index].share_charge end
  local results, failure = self.shared_engine:decide(share_charges, commit, SHARE_TIMEOUT_S)
  if not results then
    self.breakers:log_rarely("the limit's share gave no decision either, and refuses: " .. failure.text)
  end
  local charged = results and commit == 1 and all_pass(results)
  for i, index in ipairs(indexes) do
    outcomes[index] = results and degraded_outcome(charges[index], results[i], charged) or refusal()
  end
end

-- Returns the outcomes without Redis.
local function decide_without_redis(self, charges, commit)
  local outcomes, indexes, refused = {}, {}, false
  for i, charge in ipairs(charges) do
    local mode = mode_of(charge, self.default)
    if mode == "allow" then
      outcomes[i] = pass()
    elseif mode == "local" and charge_share(self, charge) then
      indexes[#indexes + 1] = i
    else
      outcomes[i], refused = refusal(), true
    end
  end
  if indexes[1] then decide_by_shares(self, charges, indexes, refused and 0 or commit, outcomes) end
  self.breakers.unanswered = self.breakers.unanswered + 1
  return outcomes
end

local function decide_by_redis(self, charges, commit, deadline)
  local breakers = self.breakers
  local all_closed, generation = breakers.all_closed, breakers.generation
  local outcomes, note = self.inner:decide(charges, commit, deadline)
  if not outcomes then
    breakers:failed(charges, note, deadline, generation)
    return decide_without_redis(self, charges, commit)
  end
  if not all_closed and note ~= "unasked" then breakers:answered(charges, outcomes, generation) end
  return outcomes
end

-- Decides while the breaker of some shard is open. A shadow there passes.
local function decide_around_breakers(self, charges, commit, deadline)
  local selected, indexes = {}, {}
  for i, charge in ipairs(charges) do
    if self.breakers:for_key(charge.key):passes(deadline) then
      selected[#selected + 1], indexes[#selected + 1] = charge, i
    elseif not charge.bound_limit.options.shadow then
      return decide_without_redis(self, charges, commit)
    end
  end
  if #selected == #charges then return decide_by_redis(self, charges, commit, deadline) end
  local outcomes = {}
  for i = 1, #charges do outcomes[i] = pass() end
  local results = selected[1] and decide_by_redis(self, selected, commit, deadline) or {}
  for i, index in ipairs(indexes) do outcomes[index] = results[i] end
  return outcomes
end

function Fallback:decide(charges, commit, deadline)
  if self.breakers.all_closed then return decide_by_redis(self, charges, commit, deadline) end
  return decide_around_breakers(self, charges, commit, deadline)
end

-- Decides one charge.
function Fallback:take(charge, deadline)
  local breakers = self.breakers
  if not breakers.all_closed then return decide_around_breakers(self, { charge }, 1, deadline)[1] end
  local generation = breakers.generation
  local outcome, failure = self.inner:take(charge, deadline)
  if outcome then return outcome end
  breakers:failed({ charge }, failure, deadline, generation)
  return decide_without_redis(self, { charge }, 1)[1]
end

-- Returns the outcomes of charges that are refused without asking, at their indexes; nil if none is. While Redis does
-- not answer, none is: shares decide.
function Fallback:refused(charges)
  if not self.breakers.all_closed then return nil end
  return self.inner:refused(charges)
end

-- Sends one request about one charge, unless its breaker is open: its result, or nil and a Failure.
local function try_redis(self, charge, deadline, method, ...)
  local breakers, inner = self.breakers, self.inner
  local key_breaker = breakers:for_key(charge.key)
  if not key_breaker:passes(deadline) then return nil, key_breaker.failure end
  local generation = breakers.generation
  local result, failure = inner[method](inner, charge, ...)
  if result == nil then
    breakers:failed({ charge }, failure, deadline, generation)
  else
    key_breaker:answered(generation)
  end
  return result, failure
end

function Fallback:refund(charge, outcome, deadline)
  if outcome.degraded == "local" and charge.share_charge then
    local refunded, failure = self.shared_engine:refund(charge.share_charge, outcome, SHARE_TIMEOUT_S)
    if not refunded then return nil, failure end
    return degraded_outcome(charge, refunded, false)
  end
  if outcome.degraded then return outcome end
  return try_redis(self, charge, deadline, "refund", outcome, deadline)
end

local function acquire_share(self, charge)
  self.breakers.unanswered = self.breakers.unanswered + 1
  local mode = mode_of(charge, self.default)
  if mode == "allow" then return pass() end
  if mode ~= "local" or not charge_share(self, charge) then return refusal() end
  local outcome, failure = self.shared_engine:acquire(charge.share_charge, SHARE_TIMEOUT_S)
  if outcome then return degraded_outcome(charge, outcome, outcome[1] == 1) end
  self.breakers:log_rarely("the limit's share gave no slot, and refuses: " .. failure.text)
  return refusal()
end

function Fallback:acquire(charge, deadline)
  charge.share_charge = nil
  return try_redis(self, charge, deadline, "acquire", deadline) or acquire_share(self, charge)
end

function Fallback:renew(charge, fence, deadline)
  if charge.share_charge then return self.shared_engine:renew(charge.share_charge, fence, SHARE_TIMEOUT_S) end
  return try_redis(self, charge, deadline, "renew", fence, deadline)
end

function Fallback:release(charge, fence, deadline)
  if charge.share_charge then return self.shared_engine:release(charge.share_charge, fence, SHARE_TIMEOUT_S) end
  return try_redis(self, charge, deadline, "release", fence, deadline)
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
