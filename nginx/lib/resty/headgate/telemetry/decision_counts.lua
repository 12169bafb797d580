-- Counts the decisions of this worker by rule: what was decided, and which layer decided it. The counterpart of
-- telemetry/decision_counts.py and telemetry/counts.py in Python.
--
-- A request is counted once for each rule that decided it, by the verdict of that rule alone. If a rule has several
-- limits, the one that refuses counts, or the one with the longest delay. A request that no rule applied to is counted
-- under the empty name; so is an error of headgate itself.
--
-- Each count is a field of a Lua table; once a second the counts are moved to the shared dict
-- (telemetry/shared_totals.lua). Where they are shared through Redis, the key of each verdict is appended to a list
-- (telemetry/key_estimates.lua). Nothing else happens in a request.
--
-- Laws (tests/nginx/telemetry/test_decision_counts.py): counts are those of a Python process that decided the same.

local key_estimates = require "resty.headgate.telemetry.key_estimates"
local measurements = require "resty.headgate.engines.measurements"
local prefetched_units = require "resty.headgate.engines.prefetch.prefetched_units"

local M = {}

local ceil, add_key, add_total = math.ceil, key_estimates.add, measurements.add

local ALLOWED, REFUSED, SHED, DELAYED, NEAR_LIMIT = 1, 2, 3, 4, 5
local SHADOW_ALLOWED, SHADOW_REFUSED, CANDIDATE_ALLOWED, CANDIDATE_REFUSED = 6, 7, 8, 9
local BY_DENIAL_CACHE, BY_PREFETCH, BY_FALLBACK, ERRORS = 10, 11, 12, 13
local PREFETCHED = prefetched_units.PREFETCHED
local NEAR_LIMIT_SHARE = 5 -- an allowed call is near the limit if less than a fifth is left
local MAX_RULES = 256 -- that are counted apart
local NO_RULE, OTHER_RULES = "", "*other*"
local ALL = "all" -- the key of a rule that counts all calls together

-- The letter of each count, as docs/reference/storage.md lists them.
M.LETTERS = { "a", "r", "x", "d", "n", "s", "S", "c", "C", "D", "P", "F", "E" }

local by_rule, rule_count = {}, 0
local on_count -- called after each request, once this worker is about to exit

-- Returns the counts of each rule since they were last moved; the caller sets those to 0 that it has moved.
function M.unmoved() return by_rule end

-- Calls the function after each request from now on.
function M.after_each(action) on_count = action end

-- Returns the counts of a rule: always the same table.
local function counts_of(name)
  local counts = by_rule[name]
  if counts then return counts end
  if rule_count >= MAX_RULES and name ~= NO_RULE and name ~= OTHER_RULES then return counts_of(OTHER_RULES) end
  if name ~= NO_RULE and name ~= OTHER_RULES then rule_count = rule_count + 1 end
  counts = {}
  for i = 1, #M.LETTERS do counts[i] = 0 end
  counts.keys = name ~= NO_RULE and key_estimates.new_lists(name) or false
  by_rule[name] = counts
  return counts
end

local function bind(bound_limit)
  bound_limit.near_limit = ceil(bound_limit.limit.quota / NEAR_LIMIT_SHARE)
  bound_limit.counts = counts_of(bound_limit.rule.name)
  return bound_limit.counts
end

-- Raises the count of a verdict, and notes its key.
local function add_verdict(counts, field, key)
  counts[field] = counts[field] + 1
  if counts.keys and key then add_key(counts.keys[field], key) end
end

local function add_shadow(counts, kind, allowed, key)
  local field
  if kind == "candidate" then
    field = allowed and CANDIDATE_ALLOWED or CANDIDATE_REFUSED
  else
    field = allowed and SHADOW_ALLOWED or SHADOW_REFUSED
  end
  add_verdict(counts, field, key)
end

-- Returns below how many units left a call is near the limit; that of an adaptive limit moves.
local function near_limit_of(bound_limit, outcome)
  return outcome.at_once and ceil(outcome.at_once / NEAR_LIMIT_SHARE) or bound_limit.near_limit
end

-- Counts the verdict of one rule.
local function add(charge, outcome)
  local bound_limit, key = charge.bound_limit, charge.key
  local counts, allowed = bound_limit.counts or bind(bound_limit), outcome[1] == 1
  if bound_limit.shadow then return add_shadow(counts, bound_limit.shadow, allowed, key) end
  if outcome.shed then return add_verdict(counts, SHED, key) end
  if key == ALL and not outcome.degraded then bound_limit.remaining = outcome[2] end
  if allowed then
    add_verdict(counts, ALLOWED, key)
    if outcome[5] > 0 then counts[DELAYED] = counts[DELAYED] + 1 end
    if outcome[2] < near_limit_of(bound_limit, outcome) then counts[NEAR_LIMIT] = counts[NEAR_LIMIT] + 1 end
  else
    add_verdict(counts, REFUSED, key)
  end
  if outcome.degraded then
    counts[BY_FALLBACK] = counts[BY_FALLBACK] + 1
  elseif outcome.cached then
    counts[BY_DENIAL_CACHE] = counts[BY_DENIAL_CACHE] + 1
  elseif outcome[PREFETCHED] then
    counts[BY_PREFETCH] = counts[BY_PREFETCH] + 1
    add_total("prefetched_units_total", charge.cost)
  end
end

-- Counts a request that one charge decided.
function M.count_single(charge, outcome)
  add(charge, outcome)
  if on_count then on_count() end
end

-- Counts a request that no rule applied to.
function M.count_pass()
  local counts = counts_of(NO_RULE)
  counts[ALLOWED] = counts[ALLOWED] + 1
  if on_count then on_count() end
end

-- Counts a request that passed undecided, because headgate itself failed.
function M.count_error()
  local counts = counts_of(NO_RULE)
  counts[ERRORS] = counts[ERRORS] + 1
  if on_count then on_count() end
end

-- Returns whether an outcome decides its rule rather than the other: a refusal, or the longer delay.
local function outweighs(outcome, other)
  if (outcome[1] == 1) ~= (other[1] == 1) then return outcome[1] ~= 1 end
  return outcome[5] > other[5]
end

-- Returns the index of the charge that decides a rule, and of the last charge of that rule. The charges of a rule, and
-- those of its candidate, follow each other. A charge that was not decided has no outcome; the index is then nil.
local function decisive_charge(charges, outcomes, first)
  local bound_limit, decisive, last = charges[first].bound_limit, nil, first
  while charges[last] and charges[last].bound_limit.rule == bound_limit.rule
    and charges[last].bound_limit.shadow == bound_limit.shadow do
    if outcomes[last] and (not decisive or outweighs(outcomes[last], outcomes[decisive])) then decisive = last end
    last = last + 1
  end
  return decisive, last - 1
end

-- Counts any request that rules applied to. `denied`: the matches that refuse without any charge.
function M.count_several(charges, outcomes, denied)
  local first = 1
  while charges[first] do
    local decisive, last = decisive_charge(charges, outcomes, first)
    if decisive then add(charges[decisive], outcomes[decisive]) end
    first = last + 1
  end
  for i = 1, denied and #denied or 0 do
    local field = denied[i].shadow and SHADOW_REFUSED or REFUSED
    add_verdict(counts_of(denied[i].rule.name), field, denied[i].key)
  end
  if on_count then on_count() end
end

return M
