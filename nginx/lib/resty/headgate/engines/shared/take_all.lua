-- Decides several charges atomically on the dict, group by group; and single charges of rules with a lockout. The twin
-- of lua/commands/take_all.lua, without overrides.
--
-- A group is the charges of one rule, or consecutive charges without lockout that are live. All locks are held from the
-- first read to the last write. First everything is evaluated, then everything is saved; if there is no room for one of
-- the charges, saved states are restored and everything is evaluated again, with that charge on the overflow count of
-- its bound limit.
--
-- Laws (tests/nginx/engines/shared/test_take_all.py, test_parity.py, test_overflow.py):
--   - all charges of the live groups are committed or none, however full the dict is;
--   - a shadow group is committed by its own verdict, whatever the others decide, and never affects them;
--   - a group that its own limits refuse counts one refusal; one that is locked out is refused without reading its
--     counts. In a full dict refusals of a new key are not counted, which is logged;
--   - a peek leaves no trace.

local bound_limits = require "resty.headgate.engines.shared.bound_limits"
local clock = require "resty.headgate.clock"
local lock = require "resty.headgate.engines.shared.lock"
local lockout = require "resty.headgate.algorithms.lockout"
local overflow = require "resty.headgate.engines.shared.overflow"

local M = {}

local wall_us = clock.wall_us

local function is_plain(options) return not options.shadow and not options.lockout end

-- Returns the charges, each with its entry on the dict; and their groups.
local function prepare(engine, charges)
  local items, groups = {}, {}
  local group, previous_options, previous_key
  for i = 1, #charges do
    local charge = charges[i]
    local binding = engine:binding(charge.bound_limit)
    local options = charge.bound_limit.options
    if is_plain(options) then options = nil end
    if not group or options ~= previous_options or (options and charge.key ~= previous_key) then
      group = { first = i, shadow = binding.shadow, lockout = binding.lockout }
      if binding.lockout then group.name = bound_limits.count_name(binding.lockout.head, charge.key) end
      groups[#groups + 1] = group
    end
    group.last, previous_options, previous_key = i, options, charge.key
    items[i] = {
      binding = binding, name = bound_limits.count_name(binding.head, charge.key), lock = lock.of(charge.key),
      store = engine.dict, cost = charge.cost,
    }
  end
  return items, groups
end

-- Returns the locks of all charges, each once, sorted. A lockout is covered by the lock of its key.
local function locks_of(items)
  local names, added = {}, {}
  local function add(name)
    if name and not added[name] then
      added[name] = true
      names[#names + 1] = name
    end
  end
  for i = 1, #items do
    add(items[i].lock)
    add(items[i].overflow_lock)
  end
  table.sort(names)
  return names
end

local function load_lockout(group, now_us)
  group.locked_us, group.refused = 0, false
  local rule_lockout = group.lockout
  if not rule_lockout then return end
  group.before = rule_lockout.binding.load(rule_lockout.store, group.name, rule_lockout.binding)
  group.after = lockout.current_state(rule_lockout.limit, group.before, now_us)
  group.locked_us = lockout.left_us(group.after, now_us)
end

local function evaluate_group(engine, group, items, now_us)
  load_lockout(group, now_us)
  group.pass = group.locked_us == 0
  if not group.pass then return end
  for i = group.first, group.last do
    local item = items[i]
    local binding = item.binding
    item.limit = bound_limits.limit_at(binding, engine.zones, now_us)
    item.before = binding.load(item.store, item.name, binding, item.limit, now_us)
    item.outcome, item.after = binding.decide(item.limit, item.before, now_us, item.cost, -1)
    if item.outcome[1] ~= 1 then
      group.pass = false
      group.refused = group.refused or item.cost > 0
    end
  end
end

local function evaluate_all(engine, groups, items, now_us)
  local pass = true
  for i = 1, #groups do
    local group = groups[i]
    evaluate_group(engine, group, items, now_us)
    if not group.shadow then pass = pass and group.pass end
  end
  return pass
end

-- Replaces the outcome of a charge that would have passed, but is not committed, by the current state.
local function peek(item, now_us)
  item.outcome, item.after = item.binding.decide(item.limit, item.before, now_us, 0, -1)
  item.outcome[1], item.outcome[3] = 1, 0
end

local function restore(item, now_us)
  if item.before then
    if not item.binding.save(item.store, item.name, item.binding, item.limit, item.before, now_us) then
      overflow.log_full("the count " .. item.name .. " was lost")
    end
  else
    item.store:delete(item.name)
  end
end

local function undo(items, from, now_us)
  for i = from, 1, -1 do
    if items[i].saved then restore(items[i], now_us) end
  end
end

-- Saves all states. Returns the charge for which there is no room, after restoring all others; nil if all are saved.
local function save(groups, items, pass, commit, now_us)
  for p = 1, #groups do
    local group = groups[p]
    local committed = group.pass
    if not group.shadow then committed = pass end
    for i = group.first, group.last do
      local item = items[i]
      item.saved = false
      if group.locked_us == 0 then
        if not (committed and commit == 1) and item.outcome[1] == 1 then peek(item, now_us) end
        if commit == 1 and item.after ~= item.before then
          item.saved = true
          if not item.binding.save(item.store, item.name, item.binding, item.limit, item.after, now_us) then
            undo(items, i, now_us)
            return item
          end
        end
      end
    end
  end
end

local function save_lockout(group, now_us)
  local rule_lockout = group.lockout
  local binding = rule_lockout.binding
  if group.refused then
    group.after = lockout.count_refusal(rule_lockout.limit, group.after, now_us)
    group.locked_us = lockout.left_us(group.after, now_us)
  end
  if not group.after or group.after == group.before then return end
  if not binding.save(rule_lockout.store, group.name, binding, rule_lockout.limit, group.after, now_us) then
    overflow.log_full("a refusal of " .. group.name .. " goes uncounted")
  end
end

local function collect_outcomes(groups, items, commit, now_us)
  local outcomes = {}
  for p = 1, #groups do
    local group = groups[p]
    if group.lockout and commit == 1 then save_lockout(group, now_us) end
    for i = group.first, group.last do
      local locked_us = group.locked_us
      local outcome = locked_us > 0 and { -3, 0, locked_us, locked_us, 0, now_us, 0 } or items[i].outcome
      if items[i].overflow then outcome.overflow = true end
      outcomes[i] = outcome
    end
  end
  return outcomes
end

-- Makes one attempt. Returns the outcomes; or nil and a Failure; or nil, nil and the charge for which there is no room.
local function attempt(engine, groups, items, commit, deadline)
  local dict, names = engine.dict, locks_of(items)
  local tickets, failure = lock.take_all(dict, names, deadline)
  if not tickets then return nil, failure end
  local now_us = wall_us()
  local pass = evaluate_all(engine, groups, items, now_us)
  local unstored = save(groups, items, pass, commit, now_us)
  local outcomes = not unstored and collect_outcomes(groups, items, commit, now_us) or nil
  lock.free_all(dict, names, tickets)
  return outcomes, nil, unstored
end

-- Moves a charge to the count that all keys share for which there is no room.
local function use_overflow(item)
  local overflow_count = item.binding.overflow_count
  local name = overflow_count.name
  item.overflow, item.store, item.name, item.overflow_lock = true, overflow_count, name, lock.of(name)
  overflow.log_full("new keys are counted together, as " .. item.name)
end

function M.decide(engine, charges, commit, deadline)
  local items, groups = prepare(engine, charges)
  for i = 1, #items do bound_limits.limit_at(items[i].binding, engine.zones, wall_us()) end
  while true do
    local outcomes, failure, unstored = attempt(engine, groups, items, commit, deadline)
    if not unstored then return outcomes, failure end
    if not overflow.sweep(engine.dict) then
      if unstored.overflow then
        return nil, { kind = "wrong", text = "The shared dict is full, and even " .. unstored.name .. " has no room." }
      end
      use_overflow(unstored)
    end
  end
end

return M
