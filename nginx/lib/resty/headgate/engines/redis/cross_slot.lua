-- Charges on keys of several slots of a cluster, which no single script can see. The twin of
-- engines/redis/cross_slot.py.
--
-- One group for each slot; a rule's charges have one key, so they are never parted. All groups are asked whether their
-- live charges would pass, then all are committed at once, and taken back where one refuses after all. What cannot be
-- taken back because its server is gone costs its own units, until they have run out by themselves.
--
-- What is aside is decided in the first of those rounds, by itself, and so are refusals counted for lockouts; both are
-- done then, and left out of the second. If all live charges lie in one group there is nothing to agree on: one round
-- commits everything, and they are as atomic as alone. An aside charge whose server gives no answer is in nobody's way:
-- it is waited for promptly only, and its facts are degraded, unless nobody answered at all.
--
-- Outcome that were decided in several places say so: facts.apart.

local cluster = require "resty.headgate.engines.redis.cluster"
local questions = require "resty.headgate.engines.redis.commands"

local spawn, wait = ngx.thread.spawn, ngx.thread.wait
local AHEAD, COMMIT, TOLD = questions.AHEAD, questions.COMMIT, questions.TOLD

local M = {}

local PROMPT = 0.05 -- seconds that those who wait for others wait for what is aside
local PASSES = 1

-- For each slot its charges, and where each of them stood.
local function groups_of(charges)
  local groups, by_slot = {}, {}
  for place, charge in ipairs(charges) do
    local slot = cluster.slot(questions.escaped(charge.key))
    local group = by_slot[slot]
    if not group then
      group = { charges = {}, places = {}, live = {} }
      by_slot[slot], groups[#groups + 1] = group, group
    end
    group.charges[#group.charges + 1] = charge
    group.places[#group.places + 1] = place
    if not charge.bound_limit.options.shadow then group.live[#group.live + 1] = charge end
  end
  return groups
end

-- All of them at once; `what` gets one of the list and its number. Two results of each.
local function at_once(list, what)
  local threads, found, failures = {}, {}, {}
  for i = 2, #list do threads[i] = spawn(what, list[i], i) end
  if list[1] then found[1], failures[1] = what(list[1], 1) end
  for i = 2, #list do
    local ok, one, failure = wait(threads[i])
    if not ok then error(one, 0) end
    found[i], failures[i] = one, failure
  end
  return found, failures
end

-- Until when a group is waited for. One that is all aside holds nobody up.
local function until_when(group, by)
  if #group.live > 0 then return by end
  local seconds = PROMPT
  for _, charge in ipairs(group.charges) do
    local own = charge.bound_limit.options.deadline
    if own and own < seconds then seconds = own end
  end
  local promptly = ngx.now() + seconds
  return promptly < by and promptly or by
end

-- Outcome of each group; nil, and trouble in the other list, where there was no answer.
local function asked(engine, groups, of, mode, by)
  return at_once(groups, function(group)
    return engine:decide_together(group[of], mode, until_when(group, by))
  end)
end

-- Whether a group's live charges pass. One that has none is in nobody's way, whatever became of it.
local function passes(outcome, charges)
  for i, charge in ipairs(charges) do
    if not charge.bound_limit.options.shadow and not (outcome and outcome[i][1] == PASSES) then return false end
  end
  return true
end

local function all_pass(outcomes, groups, of)
  for i, group in ipairs(groups) do
    if not passes(outcomes[i], group[of]) then return false end
  end
  return true
end

-- How things stand for a charge that would have passed had not another one refused.
local function standing(outcome, text) return { PASSES, outcome[2], 0, outcome[4], 0, outcome[6], outcome[7], text } end

-- Gives back what was committed, and writes how things stand into its place.
local function take_back(engine, groups, done, by)
  local back = {}
  for i, group in ipairs(groups) do
    if done[i] and passes(done[i], group.live) then
      for place, charge in ipairs(group.live) do back[#back + 1] = { done[i], place, charge } end
    end
  end
  local replies = at_once(back, function(each) return engine:given_back(each[3], each[1][each[2]], by) end)
  for i, each in ipairs(back) do
    local outcomes, place = each[1], each[2]
    if replies[i] then outcomes[place] = standing(replies[i], outcomes[place][8]) end
  end
end

-- The answer to a group: of its live charges from the commit, of the others from the round ahead of it.
local function with_aside(done, ahead, group)
  if not done or not ahead then return done end
  local found, live = {}, 0
  for i, charge in ipairs(group.charges) do
    if charge.bound_limit.options.shadow then
      found[i] = ahead[i]
    else
      live = live + 1
      found[i] = done[live]
    end
  end
  return found
end

local function degraded() return { PASSES, 0, 0, 0, 0, math.floor(ngx.now() * 1000000), 0, degraded = true } end

-- All facts in the order of the charges; or nil and the trouble that stands in the way.
local function told(groups, outcomes, failures, in_places)
  local anybody = false
  for i in ipairs(groups) do anybody = anybody or outcomes[i] ~= nil end
  local found = {}
  for i, group in ipairs(groups) do
    local outcome = outcomes[i]
    if not outcome and not (anybody and passes(nil, group.charges)) then
      failures[i].key = group.charges[1].key
      return nil, failures[i]
    end
    for at, place in ipairs(group.places) do
      local each = outcome and outcome[at] or degraded()
      if outcome and in_places then each.apart = true end
      found[place] = each
    end
  end
  return found
end

local function deciding(groups)
  local found = {}
  for _, group in ipairs(groups) do
    if #group.live > 0 then found[#found + 1] = group end
  end
  return found
end

local function agree(engine, groups, live, by)
  local outcomes, failures = asked(engine, groups, "charges", AHEAD, by)
  if not all_pass(outcomes, groups, "charges") then return told(groups, outcomes, failures, true) end
  local done, troubles = asked(engine, live, "live", COMMIT, by)
  if not all_pass(done, live, "live") then take_back(engine, live, done, by) end
  local place = {}
  for i, group in ipairs(groups) do place[group] = i end
  for i, group in ipairs(live) do
    local at = place[group]
    outcomes[at], failures[at] = with_aside(done[i], outcomes[at], group), troubles[i]
  end
  return told(groups, outcomes, failures, true)
end

-- Several charges in a cluster: one question if their keys share a slot, otherwise apart. Trouble is not told yet.
function M.decide(engine, charges, commit, by)
  local groups = groups_of(charges)
  if #groups == 1 then return engine:decide_together(charges, commit, by) end
  local live = deciding(groups)
  if commit == 1 and #live > 1 then return agree(engine, groups, live, by) end
  local outcomes, failures = asked(engine, groups, "charges", commit == 1 and COMMIT or TOLD, by)
  return told(groups, outcomes, failures, commit ~= 1)
end

return M
