-- Decides one request by a bundle: collects its charges, lets the engines decide them in order, and derives the
-- decision. The counterpart of enforcement/call_plan.py in Python.
--
-- Limits that count on this nginx are charged first, then adaptive ones, so that an overloaded service asks no server,
-- then slots, then prefetched limits, then all others in one request to Redis. When one refuses, the charges before it
-- are refunded. Once a limit on this nginx refuses, Redis gets no further charges of the request, except those of
-- shadows and candidates: they are charged by their own verdicts, and never affect the request. Load shedding and the
-- denial cache refuse before any slot, or unit in Redis, is taken: otherwise a flood would take them, only to return
-- each of them.
--
-- A charge is { bound_limit, key, cost, rule, limit }. A match that makes a single charge becomes that charge: this
-- code runs for every request, and without a new table there is less garbage to collect.
--
-- Laws (tests/nginx/test_gateway.py): a refused request changes nothing but the counts of lockouts and shadow
-- verdicts; if all rules count in Redis, one round trip decides them; an engine that does not answer never causes an
-- error page.

local measurements = require "resty.headgate.engines.measurements"

local M = {}

-- Returns a charge; with its outcome it becomes the verdict that headers.lua writes.
local function charge_of(bound_limit, key, cost)
  return {
    bound_limit = bound_limit, key = key, cost = cost, rule = bound_limit.rule, limit = bound_limit.limit,
    outcome = false,
  }
end

-- Returns whether this match makes a single charge; if so, the match becomes that charge.
function M.to_single_charge(bundle, match)
  if match.denied or match.candidate then return false end
  local bound_limits = bundle.bound_limits[match.limits][match.shadow and "shadow" or "live"]
  local bound_limit = bound_limits[1]
  if not bound_limit or bound_limits[2] then return false end
  match.bound_limit, match.limit = bound_limit, bound_limit.limit
  return true
end

-- Records the override that decided a charge; the outcome names it.
function M.note_override(engines, charge, outcome)
  if charge.bound_limit.options.overrides and outcome and outcome[8] then engines.overrides:note(charge, outcome[8]) end
end

-- Returns whether each match makes a single charge.
local function all_single_charges(bundle, matches)
  local single = M.to_single_charge(bundle, matches[1])
  for i = 2, #matches do single = single and M.to_single_charge(bundle, matches[i]) end
  return single
end

-- Here and below the first element of a list is written out; loops begin with the second: see compose_functions.lua.
local function add(charges, bound_limits, match)
  local n, key, cost = #charges, match.key, match.cost
  if bound_limits[1] then charges[n + 1] = charge_of(bound_limits[1], key, cost) end
  for i = 2, #bound_limits do charges[n + i] = charge_of(bound_limits[i], key, cost) end
end

-- Adds the charges of one rule; returns false if the rule refuses the request without any charge.
local function add_rule(bundle, match, charges)
  if match.denied then return false end
  add(charges, bundle.bound_limits[match.limits][match.shadow and "shadow" or "live"], match)
  if match.candidate then add(charges, bundle.bound_limits[match.candidate].candidate, match) end
  return true
end

-- Returns the charges of a request, in the order of the rulebook; the matches that refuse it without any charge; and
-- whether one of those is live.
local function gather(bundle, matches)
  if all_single_charges(bundle, matches) then return matches, nil, false end
  local charges, denied, refused = {}, nil, false
  if not add_rule(bundle, matches[1], charges) then denied, refused = { matches[1] }, not matches[1].shadow end
  for i = 2, #matches do
    local match = matches[i]
    if not add_rule(bundle, match, charges) then
      denied = denied or {}
      denied[#denied + 1] = match
      refused = refused or not match.shadow
    end
  end
  return charges, denied, refused
end

-- Returns the engine that decides all of the charges; nil if there are several.
local function common_engine(charges)
  local engine_name = charges[1].bound_limit.decided_by
  for i = 2, #charges do
    if charges[i].bound_limit.decided_by ~= engine_name then return nil end
  end
  return engine_name
end

-- Returns the deadline in seconds: the shortest of the live rules.
local function deadline_of(charges)
  local shortest = charges[1].bound_limit.options.deadline
  for i = 2, #charges do
    local options = charges[i].bound_limit.options
    if not options.shadow and options.deadline < shortest then shortest = options.deadline end
  end
  return shortest
end

local function any_refuses(charges, outcomes, indexes)
  for _, index in ipairs(indexes) do
    local outcome = outcomes[index]
    if outcome and outcome[1] ~= 1 and not charges[index].bound_limit.shadow then return true end
  end
  return false
end

-- Returns the indexes of the charges that this engine decides; once refused, of shadows and candidates only.
local function indexes_decided_by(charges, engine_name, refused)
  local indexes = {}
  for index, charge in ipairs(charges) do
    local bound_limit = charge.bound_limit
    if bound_limit.decided_by == engine_name and (bound_limit.shadow or not refused) then
      indexes[#indexes + 1] = index
    end
  end
  return indexes
end

local function request_outcomes(engines, engine, charges)
  local outcomes, failure = engine:decide(charges, 1, deadline_of(charges))
  if not outcomes then return engines.unavailable(charges, failure) end
  M.note_override(engines, charges[1], outcomes[1])
  for i = 2, #charges do M.note_override(engines, charges[i], outcomes[i]) end
  return outcomes
end

local function decide_some(engines, engine, charges, indexes, outcomes)
  if #indexes == 0 then return end
  local selected = {}
  for i, index in ipairs(indexes) do selected[i] = charges[index] end
  local results = request_outcomes(engines, engine, selected)
  for i, index in ipairs(indexes) do outcomes[index] = results[i] end
end

-- Refunds what was charged before another rule refused. A shadow keeps its charge, but not its slot.
local function refund_charged(engines, charges, outcomes, indexes)
  for _, index in ipairs(indexes) do
    local charge, outcome = charges[index], outcomes[index]
    if outcome and outcome[1] == 1 and outcome.degraded ~= true then
      local engine = charge.bound_limit.on_shared_dict and engines.shared or engines.redis
      if charge.bound_limit.decided_by == "slots" then
        engine:release(charge, outcome[7], charge.bound_limit.options.deadline)
      elseif not charge.bound_limit.shadow then
        if charge.bound_limit.decided_by == "prefetched" then engine = engines.prefetched end
        local refunded = engine:refund(charge, outcome, charge.bound_limit.options.deadline)
        if refunded then
          refunded[1] = 1
          outcomes[index] = refunded
        else
          measurements.add("lost_refunds_total", 1)
        end
      end
    end
  end
end

-- Returns whether a charge of this engine is refused without a request to Redis; writes its outcome into `outcomes`.
local function refused_by_cache(engine, charges, engine_name, outcomes)
  local indexes = indexes_decided_by(charges, engine_name, false)
  if #indexes == 0 then return false end
  local selected = {}
  for i, index in ipairs(indexes) do selected[i] = charges[index] end
  local results = engine:refused(selected)
  for i, outcome in pairs(results or {}) do outcomes[indexes[i]] = outcome end
  return results ~= nil
end

-- Returns whether the request is refused without a request to Redis. Never so with lockouts and shadows: Redis has to
-- count their refusals.
local function refused_without_asking(engines, charges, outcomes)
  for _, charge in ipairs(charges) do
    if charge.bound_limit.options.lockout or charge.bound_limit.shadow then return false end
  end
  return refused_by_cache(engines.redis, charges, "redis", outcomes)
    or refused_by_cache(engines.prefetched, charges, "prefetched", outcomes)
end

-- Decides charges that belong to different engines, one engine after the other.
local function decide_in_stages(engines, charges, refused)
  local outcomes, charged = {}, {}
  local shared_charges = indexes_decided_by(charges, "shared", refused)
  decide_some(engines, engines.shared, charges, shared_charges, outcomes)
  if any_refuses(charges, outcomes, shared_charges) then
    refused = true
  else
    for _, index in ipairs(shared_charges) do charged[#charged + 1] = index end
  end
  for _, index in ipairs(indexes_decided_by(charges, "adaptive", false)) do
    if not refused then
      outcomes[index] = engines.calls_in_flight:enter(charges[index])
      refused = any_refuses(charges, outcomes, { index })
    end
  end
  refused = refused or refused_without_asking(engines, charges, outcomes)
  for _, index in ipairs(indexes_decided_by(charges, "slots", false)) do
    local charge = charges[index]
    if charge.bound_limit.shadow or not refused then
      local engine = charge.bound_limit.on_shared_dict and engines.shared or engines.redis
      local outcome, failure = engine:acquire(charge, charge.bound_limit.options.deadline)
      outcomes[index] = outcome or engines.unavailable({ charge }, failure)[1]
      charged[#charged + 1] = index
      refused = refused or any_refuses(charges, outcomes, { index })
    end
  end
  for _, index in ipairs(indexes_decided_by(charges, "prefetched", false)) do
    if charges[index].bound_limit.shadow or not refused then
      decide_some(engines, engines.prefetched, charges, { index }, outcomes)
      charged[#charged + 1] = index
      refused = refused or any_refuses(charges, outcomes, { index })
    end
  end
  local redis_charges = indexes_decided_by(charges, "redis", refused)
  decide_some(engines, engines.redis, charges, redis_charges, outcomes)
  refused = refused or any_refuses(charges, outcomes, redis_charges)
  if refused then
    engines.calls_in_flight:cancel()
    refund_charged(engines, charges, outcomes, charged)
  end
  return outcomes, refused
end

-- Returns the slots that this request holds; nil if it holds none.
local function held_slots(charges, outcomes)
  local held
  for index, charge in ipairs(charges) do
    local outcome = outcomes[index]
    if charge.bound_limit.decided_by == "slots" and outcome and outcome[1] == 1 and outcome.degraded ~= true then
      held = held or {}
      held[#held + 1] = { charge = charge, fence = outcome[7] }
    end
  end
  return held
end

-- Returns whether a charge lets the request pass. A charge without an outcome does: it was not decided, because another
-- charge was refused from memory.
local function passes(charge, outcome) return not outcome or outcome[1] == 1 or charge.bound_limit.shadow ~= nil end

-- Returns whether the request may pass; its charges, and the Outcome of each, or nil if it was not decided; the matches
-- that refuse without any charge; and the slots that it holds ({ charge, fence }), if any.
--
-- `engines`: shared, redis, prefetched; `calls_in_flight`, which decides adaptive limits; `overrides`, which reads the
-- limits of single keys; and `unavailable(charges, failure)`, which returns the outcomes where an engine gives none.
function M.decide(bundle, matches, engines)
  local charges, denied, refused = gather(bundle, matches)
  if not charges[1] then return not refused, charges, charges, denied, nil end
  local engine_name = not denied and common_engine(charges)
  if engine_name == "redis" or engine_name == "shared" then
    local outcomes = request_outcomes(engines, engines[engine_name], charges)
    local allowed = passes(charges[1], outcomes[1])
    for i = 2, #charges do allowed = allowed and passes(charges[i], outcomes[i]) end
    return allowed, charges, outcomes, nil, nil
  end
  local outcomes
  outcomes, refused = decide_in_stages(engines, charges, refused)
  return not refused, charges, outcomes, denied, not refused and held_slots(charges, outcomes) or nil
end

return M
