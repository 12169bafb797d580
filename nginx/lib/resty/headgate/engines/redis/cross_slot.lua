-- Decides charges on keys of several slots of a cluster, which no single script can access. The twin of
-- engines/redis/cross_slot.py.
--
-- There is one group for each slot; a rule's charges have one key, so they are never separated. All groups are asked
-- whether their live charges would pass, then all are committed at once, and refunded where one refuses after all. A
-- charge that cannot be refunded because its server is gone costs its units, until they have expired by themselves.
--
-- Shadows are decided in the first of those rounds, by themselves, and so are refusals counted for lockouts; both are
-- committed then, and omitted from the second. If all live charges are in one group there is nothing to agree on: one
-- round commits everything, as atomically as alone. A shadow whose server does not reply affects nothing: it has a
-- short timeout, and its outcome is degraded, unless no server replied at all.
--
-- Outcomes that were decided in several slots say so: outcome.cross_slot.

local cluster = require "resty.headgate.engines.redis.cluster"
local commands = require "resty.headgate.engines.redis.commands"

local spawn, wait = ngx.thread.spawn, ngx.thread.wait
local PRECHECK, COMMIT, PEEK = commands.PRECHECK, commands.COMMIT, commands.PEEK

local M = {}

local SHADOW_TIMEOUT_S = 0.05 -- that a request waits for its shadows
local ALLOWED = 1

-- Groups the charges by slot, with the index of each.
local function groups_of(charges)
  local groups, by_slot = {}, {}
  for index, charge in ipairs(charges) do
    local slot = cluster.slot(commands.escaped(charge.key))
    local group = by_slot[slot]
    if not group then
      group = { charges = {}, indexes = {}, live = {} }
      by_slot[slot], groups[#groups + 1] = group, group
    end
    group.charges[#group.charges + 1] = charge
    group.indexes[#group.indexes + 1] = index
    if not charge.bound_limit.options.shadow then group.live[#group.live + 1] = charge end
  end
  return groups
end

-- Runs `action` on each element of a list, with its index, all at once. Returns two results of each.
local function run_all(list, action)
  local threads, results, failures = {}, {}, {}
  for i = 2, #list do threads[i] = spawn(action, list[i], i) end
  if list[1] then results[1], failures[1] = action(list[1], 1) end
  for i = 2, #list do
    local ok, result, failure = wait(threads[i])
    if not ok then error(result, 0) end
    results[i], failures[i] = result, failure
  end
  return results, failures
end

-- Returns the deadline of a group. One with shadows only delays no request.
local function group_deadline_at(group, deadline_at)
  if #group.live > 0 then return deadline_at end
  local seconds = SHADOW_TIMEOUT_S
  for _, charge in ipairs(group.charges) do
    local shadow_deadline = charge.bound_limit.options.deadline
    if shadow_deadline and shadow_deadline < seconds then seconds = shadow_deadline end
  end
  local shadow_deadline_at = ngx.now() + seconds
  return shadow_deadline_at < deadline_at and shadow_deadline_at or deadline_at
end

-- Returns the Outcomes of each group; nil, and a failure in the other list, where there was no reply.
local function decide_groups(engine, groups, field, mode, deadline_at)
  return run_all(groups, function(group)
    return engine:decide_in_one(group[field], mode, group_deadline_at(group, deadline_at))
  end)
end

-- Returns whether a group's live charges pass. A group without live charges always does.
local function passes(outcomes, charges)
  for i, charge in ipairs(charges) do
    if not charge.bound_limit.options.shadow and not (outcomes and outcomes[i][1] == ALLOWED) then return false end
  end
  return true
end

local function all_pass(outcomes, groups, field)
  for i, group in ipairs(groups) do
    if not passes(outcomes[i], group[field]) then return false end
  end
  return true
end

-- Returns the current state as the outcome of a charge that would have passed had not another one refused.
local function state_of(outcome, text)
  return { ALLOWED, outcome[2], 0, outcome[4], 0, outcome[6], outcome[7], text }
end

-- Refunds what was committed, and replaces its outcome by the state after it.
local function refund_committed(engine, groups, committed, deadline_at)
  local refunds = {}
  for i, group in ipairs(groups) do
    if committed[i] and passes(committed[i], group.live) then
      for index, charge in ipairs(group.live) do refunds[#refunds + 1] = { committed[i], index, charge } end
    end
  end
  local replies = run_all(refunds, function(entry)
    return engine:refund_until(entry[3], entry[1][entry[2]], deadline_at)
  end)
  for i, entry in ipairs(refunds) do
    local outcomes, index = entry[1], entry[2]
    if replies[i] then outcomes[index] = state_of(replies[i], outcomes[index][8]) end
  end
end

-- Merges the outcomes of a group: of its live charges from the commit, of its shadows from the round before it.
local function merge_shadows(committed, prechecked, group)
  if not committed or not prechecked then return committed end
  local results, live = {}, 0
  for i, charge in ipairs(group.charges) do
    if charge.bound_limit.options.shadow then
      results[i] = prechecked[i]
    else
      live = live + 1
      results[i] = committed[live]
    end
  end
  return results
end

local function degraded() return { ALLOWED, 0, 0, 0, 0, math.floor(ngx.now() * 1000000), 0, degraded = true } end

-- Returns all outcomes in the order of the charges; or nil and a failure.
local function collect(groups, outcomes_by_group, failures, is_cross_slot)
  local any_reply = false
  for i in ipairs(groups) do any_reply = any_reply or outcomes_by_group[i] ~= nil end
  local results = {}
  for i, group in ipairs(groups) do
    local outcomes = outcomes_by_group[i]
    if not outcomes and not (any_reply and passes(nil, group.charges)) then
      failures[i].key = group.charges[1].key
      return nil, failures[i]
    end
    for at, index in ipairs(group.indexes) do
      local outcome = outcomes and outcomes[at] or degraded()
      if outcomes and is_cross_slot then outcome.cross_slot = true end
      results[index] = outcome
    end
  end
  return results
end

local function groups_with_live(groups)
  local results = {}
  for _, group in ipairs(groups) do
    if #group.live > 0 then results[#results + 1] = group end
  end
  return results
end

local function decide_in_two_phases(engine, groups, live, deadline_at)
  local outcomes, failures = decide_groups(engine, groups, "charges", PRECHECK, deadline_at)
  if not all_pass(outcomes, groups, "charges") then return collect(groups, outcomes, failures, true) end
  local committed, commit_failures = decide_groups(engine, live, "live", COMMIT, deadline_at)
  if not all_pass(committed, live, "live") then refund_committed(engine, live, committed, deadline_at) end
  local index_of = {}
  for i, group in ipairs(groups) do index_of[group] = i end
  for i, group in ipairs(live) do
    local at = index_of[group]
    outcomes[at], failures[at] = merge_shadows(committed[i], outcomes[at], group), commit_failures[i]
  end
  return collect(groups, outcomes, failures, true)
end

-- Decides several charges in a cluster: by one request if their keys share a slot. A failure is not explained yet.
function M.decide(engine, charges, commit, deadline_at)
  local groups = groups_of(charges)
  if #groups == 1 then return engine:decide_in_one(charges, commit, deadline_at) end
  local live = groups_with_live(groups)
  if commit == 1 and #live > 1 then return decide_in_two_phases(engine, groups, live, deadline_at) end
  local outcomes, failures = decide_groups(engine, groups, "charges", commit == 1 and COMMIT or PEEK, deadline_at)
  return collect(groups, outcomes, failures, commit ~= 1)
end

return M
