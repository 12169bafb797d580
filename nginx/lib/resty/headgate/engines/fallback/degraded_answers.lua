-- Answers charges without Redis, by the fallback of their rule. The twin of
-- engines/layers/fallback/degraded_answers.py.
--
--   allow   it passes, with nothing remaining
--   deny    it is refused until the next probe of Redis
--   local   it is decided by this nginx's share of the limit, among all members (membership.lua), on the shared dict,
--           all workers together, under names that nothing else has
--
-- The rules of one request each keep their own fallback. One that refuses refuses for all, and no share is charged
-- then. Shadows pass and are not counted. Meanwhile there are no lockouts, and a key with an override has a share of
-- its rule's limit.
--
-- Outcomes of a fallback are `degraded`: "local" if a share was charged, which can be refunded, and true otherwise. The
-- charge on the share is stored on its charge (charge.share_charge), so refunds and releases go to the engine that
-- decided.
--
-- (Of a smooth limit each share begins with the one unit that passes at once; and a share of a sliding log copies its
-- timestamps at each decision, so one of many thousand units is slow.)

local clock = require "resty.headgate.clock"
local limit_share = require "resty.headgate.engines.fallback.limit_share"

local M = {}

local MIN_RETRY_US = 1000000 -- where no breaker says when Redis is probed
local SHARE_TIMEOUT_S = 0.05 -- that a share may wait for its lock

local now_us = clock.wall_us

M.SHARE_TIMEOUT_S = SHARE_TIMEOUT_S

function M.pass() return { 1, 0, 0, 0, 0, now_us(), 0, degraded = true } end

function M.refusal(retry_us) return { 0, 0, retry_us or MIN_RETRY_US, 0, 0, now_us(), 0, degraded = true } end

function M.mode_of(charge, default)
  local options = charge.bound_limit.options
  return options.shadow and "allow" or options.fallback or default
end

function M.all_pass(outcomes)
  for i = 1, #outcomes do
    if outcomes[i][1] ~= 1 then return false end
  end
  return true
end

local DegradedAnswers = {}
DegradedAnswers.__index = DegradedAnswers

-- `default`: the fallback of rules that have none.
function M.new(shared_engine, membership, breakers, default)
  return setmetatable({
    shared_engine = shared_engine, membership = membership, breakers = breakers, default = default,
    shares = setmetatable({}, { __mode = "k" }),
  }, DegradedAnswers)
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
function DegradedAnswers:charge_share(charge)
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
function DegradedAnswers:degraded_outcome(charge, outcome, is_charged)
  outcome.degraded = is_charged and "local" or true
  if outcome[1] ~= 1 and outcome[3] < 0 and charge.cost <= charge.bound_limit.limit.fresh then
    outcome[3] = self.breakers:next_probe_us(charge.key)
  end
  return outcome
end

-- Returns the charges that shares decide, and whether all others pass.
function DegradedAnswers:shared_charges(charges)
  local shared, others_pass = {}, true
  for _, charge in ipairs(charges) do
    local mode = M.mode_of(charge, self.default)
    if mode == "local" and self:charge_share(charge) then
      shared[#shared + 1] = charge
    elseif mode ~= "allow" then
      others_pass = false
    end
  end
  return shared, others_pass
end

-- Returns the outcomes of the shares of these charges, in their order; refusals, if the dict gives none.
function DegradedAnswers:decide_by_share(shared, commit)
  if not shared[1] then return {} end
  local share_charges = {}
  for i, charge in ipairs(shared) do share_charges[i] = charge.share_charge end
  local outcomes, failure = self.shared_engine:decide(share_charges, commit, SHARE_TIMEOUT_S)
  if not outcomes then
    self.breakers:log_rarely("the limit's share gave no decision either, and refuses: " .. failure.text)
  end
  local is_charged = outcomes and commit == 1 and M.all_pass(outcomes)
  for i, charge in ipairs(shared) do
    share_charges[i] = outcomes and self:degraded_outcome(charge, outcomes[i], is_charged)
      or M.refusal(self.breakers:next_probe_us(charge.key))
  end
  return share_charges
end

-- Returns the outcome of every charge, given those of the shares.
function DegradedAnswers:merge(charges, shared, by_share)
  local outcomes, next_shared = {}, 1
  for i, charge in ipairs(charges) do
    if charge == shared[next_shared] then
      outcomes[i], next_shared = by_share[next_shared], next_shared + 1
    elseif M.mode_of(charge, self.default) == "allow" then
      outcomes[i] = M.pass()
    else
      outcomes[i] = M.refusal(self.breakers:next_probe_us(charge.key))
    end
  end
  self.breakers:count_degraded()
  return outcomes
end

-- Acquires a slot of the share; an outcome in any case.
function DegradedAnswers:acquire(charge)
  self.breakers:count_degraded()
  local mode = M.mode_of(charge, self.default)
  if mode == "allow" then return M.pass() end
  local retry_us = self.breakers:next_probe_us(charge.key)
  if mode ~= "local" or not self:charge_share(charge) then return M.refusal(retry_us) end
  local outcome, failure = self.shared_engine:acquire(charge.share_charge, SHARE_TIMEOUT_S)
  if outcome then return self:degraded_outcome(charge, outcome, outcome[1] == 1) end
  self.breakers:log_rarely("the limit's share gave no slot, and refuses: " .. failure.text)
  return M.refusal(retry_us)
end

return M
