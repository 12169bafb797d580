-- Several charges decided together on the dict, part by part; and one charge that is more than a take. The twin of
-- lua/commands/take_all.lua, without overrides.
--
-- All locks are held from the first look to the last write. First everything is judged, then everything is saved; if
-- one of the charges finds no room, what was saved is put back and all is judged again, with that charge counted under
-- its hand's overflow.
--
-- Laws (tests/nginx/engines/shared/test_take_all.py, test_parity.py, test_room.py):
--   - all charges of the live parts are committed or none, whatever room there is;
--   - a part aside is committed by its own verdict, whatever the others say, and is never in their way;
--   - a part that its own limits refuse counts one refusal; one that is locked out is refused without a look at its
--     counts. In a full dict a new key's refusals go uncounted, and the log says so;
--   - what is only told leaves no trace.

local clock = require "resty.headgate.clock"
local hands = require "resty.headgate.engines.shared.bound_limits"
local lock = require "resty.headgate.engines.shared.lock"
local lockout = require "resty.headgate.algorithms.lockout"
local room = require "resty.headgate.engines.shared.overflow"

local M = {}

local wall_us = clock.wall_us

local function silent(terms) return not terms.aside and not terms.lockout end

-- The charges, each with its place on the dict; and which of them are one part.
local function laid(engine, charges)
  local items, parts = {}, {}
  local part, last, whose
  for i = 1, #charges do
    local charge = charges[i]
    local own = engine:own(charge.hand)
    local terms = charge.hand.terms
    if silent(terms) then terms = nil end
    if not part or terms ~= last or (terms and charge.key ~= whose) then
      part = { first = i, aside = own.aside, lockout = own.lockout }
      if own.lockout then part.name = hands.named(own.lockout.head, charge.key) end
      parts[#parts + 1] = part
    end
    part.last, last, whose = i, terms, charge.key
    items[i] = {
      own = own, name = hands.named(own.head, charge.key), lock = lock.of(charge.key), store = engine.dict,
      cost = charge.cost,
    }
  end
  return items, parts
end

-- Each once, in one order. A lockout has the lock of its key.
local function locks_of(items)
  local names, seen = {}, {}
  local function add(name)
    if name and not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  for i = 1, #items do
    add(items[i].lock)
    add(items[i].spare_lock)
  end
  table.sort(names)
  return names
end

local function look_at_lockout(part, now_us)
  part.left_us, part.refused = 0, false
  local locks = part.lockout
  if not locks then return end
  part.before = locks.own.load(locks.store, part.name, locks.own)
  part.after = lockout.settled(locks.limit, part.before, now_us)
  part.left_us = lockout.left_us(part.after, now_us)
end

local function judge_part(engine, part, items, now_us)
  look_at_lockout(part, now_us)
  part.pass = part.left_us == 0
  if not part.pass then return end
  for i = part.first, part.last do
    local item = items[i]
    local own = item.own
    item.limit = hands.limit_at(own, engine.zones, now_us)
    item.before = own.load(item.store, item.name, own, item.limit, now_us)
    item.facts, item.after = own.decide(item.limit, item.before, now_us, item.cost, -1)
    if item.facts[1] ~= 1 then
      part.pass = false
      part.refused = part.refused or item.cost > 0
    end
  end
end

local function judge(engine, parts, items, now_us)
  local pass = true
  for i = 1, #parts do
    local part = parts[i]
    judge_part(engine, part, items, now_us)
    if not part.aside then pass = pass and part.pass end
  end
  return pass
end

-- How things stand, where a charge that would have passed is not taken.
local function untake(item, now_us)
  item.facts, item.after = item.own.decide(item.limit, item.before, now_us, 0, -1)
  item.facts[1], item.facts[3] = 1, 0
end

local function put_back(item, now_us)
  if item.before then
    if not item.own.save(item.store, item.name, item.own, item.limit, item.before, now_us) then
      room.tell("the count " .. item.name .. " was lost")
    end
  else
    item.store:delete(item.name)
  end
end

local function undo(items, from, now_us)
  for i = from, 1, -1 do
    if items[i].saved then put_back(items[i], now_us) end
  end
end

-- The charge that found no room, after all the others were put back; nil if all is well.
local function save(parts, items, pass, commit, now_us)
  for p = 1, #parts do
    local part = parts[p]
    local taken = part.pass
    if not part.aside then taken = pass end
    for i = part.first, part.last do
      local item = items[i]
      item.saved = false
      if part.left_us == 0 then
        if not (taken and commit == 1) and item.facts[1] == 1 then untake(item, now_us) end
        if commit == 1 and item.after ~= item.before then
          item.saved = true
          if not item.own.save(item.store, item.name, item.own, item.limit, item.after, now_us) then
            undo(items, i, now_us)
            return item
          end
        end
      end
    end
  end
end

local function save_lockout(part, now_us)
  local locks = part.lockout
  if part.refused then
    part.after = lockout.refused(locks.limit, part.after, now_us)
    part.left_us = lockout.left_us(part.after, now_us)
  end
  if not part.after or part.after == part.before then return end
  if not locks.own.save(locks.store, part.name, locks.own, locks.limit, part.after, now_us) then
    room.tell("a refusal of " .. part.name .. " goes uncounted")
  end
end

local function answer(parts, items, commit, now_us)
  local answers = {}
  for p = 1, #parts do
    local part = parts[p]
    if part.lockout and commit == 1 then save_lockout(part, now_us) end
    for i = part.first, part.last do
      local left_us = part.left_us
      local facts = left_us > 0 and { -3, 0, left_us, left_us, 0, now_us, 0 } or items[i].facts
      if items[i].overflow then facts.overflow = true end
      answers[i] = facts
    end
  end
  return answers
end

-- One try: the answers; or nil and a Trouble; or nil, nil and the charge that found no room.
local function try(engine, parts, items, commit, deadline)
  local dict, names = engine.dict, locks_of(items)
  local tickets, trouble = lock.take_all(dict, names, deadline)
  if not tickets then return nil, trouble end
  local now_us = wall_us()
  local pass = judge(engine, parts, items, now_us)
  local crowded = save(parts, items, pass, commit, now_us)
  local answers = not crowded and answer(parts, items, commit, now_us) or nil
  lock.free_all(dict, names, tickets)
  return answers, nil, crowded
end

-- From here on this charge is counted with all others that find no room.
local function overflow(item)
  local spare = item.own.spare
  item.overflow, item.store, item.name, item.spare_lock = true, spare, spare.name, lock.of(spare.name)
  room.tell("new keys are counted together, as " .. item.name)
end

function M.decide(engine, charges, commit, deadline)
  local items, parts = laid(engine, charges)
  for i = 1, #items do hands.limit_at(items[i].own, engine.zones, wall_us()) end
  while true do
    local answers, trouble, crowded = try(engine, parts, items, commit, deadline)
    if not crowded then return answers, trouble end
    if not room.make(engine.dict) then
      if crowded.overflow then
        return nil, { kind = "wrong", text = "The shared dict is full, and even " .. crowded.name .. " has no room." }
      end
      overflow(crowded)
    end
  end
end

return M
