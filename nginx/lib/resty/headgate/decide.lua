-- One request under a plate: which charges it makes, in which order they are asked, and the decision made of it. The
-- twin of enforcement/call_plan.py.
--
-- What counts on this nginx is charged first, then slots, then what is prefetched, then all else in one question to
-- Redis; whoever was charged before one refused gets it back. If something here refuses, Redis is not asked any more,
-- except for shadows and candidates: they keep what their own verdict says, and are never in the way. What is shed, or
-- refused from memory, is so before the first question: else a flood would take slots and units, and give each
-- of them back.
--
-- A charge is { hand, key, cost, rule, limit }: a match that makes one charge becomes it, because this runs for every
-- request, and what is not made need not be thrown away.
--
-- Laws (tests/nginx/test_gateway.py): a refused request leaves no trace but what lockouts and asides count; all rules
-- are asked in one round trip where all are there; an engine that gives no answer never makes an error page.

local M = {}

-- A charge, which with its facts becomes the verdict that headers.lua tells.
local function charge_of(hand, key, cost)
  return { hand = hand, key = key, cost = cost, rule = hand.rule, limit = hand.limit, facts = false }
end

-- Whether this match makes one charge; from now on it is that charge.
local function is_one(plate, match)
  if match.denied or match.candidate then return false end
  local hands = plate.hands[match.limits][match.shadow and "shadow" or "live"]
  local hand = hands[1]
  if not hand or hands[2] then return false end
  match.hand, match.limit = hand, hand.limit
  return true
end

-- A key with a limit of its own was decided by that: the facts name it.
local function note_own(engines, charge, facts)
  if charge.hand.terms.overrides and facts and facts[8] then engines.own:note(charge, facts[8]) end
end

-- The Outcome of a request that meets one rule, if that makes one charge and no more is to be done than to ask; else nil,
-- and nobody was asked.
function M.alone(plate, match, engines)
  if not is_one(plate, match) or match.shadow then return nil end
  local hand = match.hand
  local engine = engines[hand.where]
  if not engine then return nil end -- a slot is held
  local facts, trouble = engine:take(match, hand.terms.deadline)
  note_own(engines, match, facts)
  return facts or engines.without({ match }, trouble)[1]
end

-- Whether all of them do.
local function are_charges(plate, matches)
  local so = is_one(plate, matches[1])
  for i = 2, #matches do so = so and is_one(plate, matches[i]) end
  return so
end

-- Here and below the first of a row is written out, and loops begin with the second: chain.lua tells why.
local function add(charges, hands, match)
  local n, key, cost = #charges, match.key, match.cost
  if hands[1] then charges[n + 1] = charge_of(hands[1], key, cost) end
  for i = 2, #hands do charges[n + i] = charge_of(hands[i], key, cost) end
end

-- Adds what one rule charges; false if it refuses without asking.
local function add_rule(plate, match, charges)
  if match.denied then return false end
  add(charges, plate.hands[match.limits][match.shadow and "shadow" or "live"], match)
  if match.candidate then add(charges, plate.hands[match.candidate].candidate, match) end
  return true
end

-- The charges that a request makes, in the order of the book; those who refuse without being asked; whether one does.
local function gather(plate, matches)
  if are_charges(plate, matches) then return matches, nil, false end
  local charges, denied, refused = {}, nil, false
  if not add_rule(plate, matches[1], charges) then denied, refused = { matches[1] }, not matches[1].shadow end
  for i = 2, #matches do
    local match = matches[i]
    if not add_rule(plate, match, charges) then
      denied = denied or {}
      denied[#denied + 1] = match
      refused = refused or not match.shadow
    end
  end
  return charges, denied, refused
end

-- Where all of them are decided; nil if not in one place.
local function place_of(charges)
  local place = charges[1].hand.where
  for i = 2, #charges do
    if charges[i].hand.where ~= place then return nil end
  end
  return place
end

-- Seconds: of several live rules the shortest.
local function deadline_of(charges)
  local shortest = charges[1].hand.terms.deadline
  for i = 2, #charges do
    local terms = charges[i].hand.terms
    if not terms.aside and terms.deadline < shortest then shortest = terms.deadline end
  end
  return shortest
end

local function refuse(charges, answers, places)
  for _, place in ipairs(places) do
    local facts = answers[place]
    if facts and facts[1] ~= 1 and not charges[place].hand.aside then return true end
  end
  return false
end

-- The places of the charges that are decided there; once refused, of those aside only.
local function those(charges, where, refused)
  local places = {}
  for place, charge in ipairs(charges) do
    if charge.hand.where == where and (charge.hand.aside or not refused) then places[#places + 1] = place end
  end
  return places
end

local function asked(engines, engine, charges)
  local answers, trouble = engine:decide(charges, 1, deadline_of(charges))
  if not answers then return engines.without(charges, trouble) end
  note_own(engines, charges[1], answers[1])
  for i = 2, #charges do note_own(engines, charges[i], answers[i]) end
  return answers
end

local function together(engines, engine, charges, places, answers)
  if #places == 0 then return end
  local few = {}
  for i, place in ipairs(places) do few[i] = charges[place] end
  local found = asked(engines, engine, few)
  for i, place in ipairs(places) do answers[place] = found[i] end
end

-- What was charged before another rule refused. A shadow keeps its own; but nobody holds a slot for it.
local function give_back(engines, charges, answers, places)
  for _, place in ipairs(places) do
    local charge, facts = charges[place], answers[place]
    if facts and facts[1] == 1 and facts.degraded ~= true then
      local engine = charge.hand.here and engines.here or engines.there
      if charge.hand.where == "slots" then
        engine:release(charge, facts[7], charge.hand.terms.deadline)
      elseif not charge.hand.aside then
        if charge.hand.where == "prefetched" then engine = engines.prefetched end
        local after = engine:refund(charge, facts, charge.hand.terms.deadline)
        if after then
          after[1] = 1
          answers[place] = after
        end
      end
    end
  end
end

-- Whether one of the charges that are decided there is refused without asking; its answer is put in its place.
local function refused_at(engine, charges, where, answers)
  local places = those(charges, where, false)
  if #places == 0 then return false end
  local few = {}
  for i, place in ipairs(places) do few[i] = charges[place] end
  local found = engine:refused(few)
  for i, facts in pairs(found or {}) do answers[places[i]] = facts end
  return found ~= nil
end

-- The same wherever Redis decides. Lockouts and asides have refusals to count: what comes with them is not foreseen.
local function foreseen(engines, charges, answers)
  for _, charge in ipairs(charges) do
    if charge.hand.terms.lockout or charge.hand.aside then return false end
  end
  return refused_at(engines.there, charges, "there", answers)
    or refused_at(engines.prefetched, charges, "prefetched", answers)
end

-- The long way: in parts, as they are decided in different places.
local function in_turn(engines, charges, refused)
  local answers, charged = {}, {}
  local here = those(charges, "here", refused)
  together(engines, engines.here, charges, here, answers)
  if refuse(charges, answers, here) then
    refused = true
  else
    for _, place in ipairs(here) do charged[#charged + 1] = place end
  end
  refused = refused or foreseen(engines, charges, answers)
  for _, place in ipairs(those(charges, "slots", false)) do
    local charge = charges[place]
    if charge.hand.aside or not refused then
      local engine = charge.hand.here and engines.here or engines.there
      local facts, trouble = engine:acquire(charge, charge.hand.terms.deadline)
      answers[place] = facts or engines.without({ charge }, trouble)[1]
      charged[#charged + 1] = place
      refused = refused or refuse(charges, answers, { place })
    end
  end
  for _, place in ipairs(those(charges, "prefetched", false)) do
    if charges[place].hand.aside or not refused then
      together(engines, engines.prefetched, charges, { place }, answers)
      charged[#charged + 1] = place
      refused = refused or refuse(charges, answers, { place })
    end
  end
  local there = those(charges, "there", refused)
  together(engines, engines.there, charges, there, answers)
  refused = refused or refuse(charges, answers, there)
  if refused then give_back(engines, charges, answers, charged) end
  return answers, refused
end

-- Slots that this request holds: nil if it holds none.
local function held_by(charges, answers)
  local held
  for place, charge in ipairs(charges) do
    local facts = answers[place]
    if charge.hand.where == "slots" and facts and facts[1] == 1 and facts.degraded ~= true then
      held = held or {}
      held[#held + 1] = { charge = charge, fence = facts[7] }
    end
  end
  return held
end

-- Whether a charge is in nobody's way. No facts: it was not asked, because another one refuses by what is remembered.
local function passes(one, facts) return not facts or facts[1] == 1 or one.hand.aside ~= nil end

-- Whether the request may pass; its charges, and for each its Outcome, or nil of who was not asked; the matches that
-- refuse without asking, and the slots that it holds ({ charge, fence }), if any.
--
-- `engines`: here, there, prefetched; `own`, who knows overrides; and `without(charges, trouble)`: the answers where an
-- engine gives none.
function M.decide(plate, matches, engines)
  local charges, denied, refused = gather(plate, matches)
  if not charges[1] then return not refused, charges, charges, denied, nil end
  local place = not denied and place_of(charges)
  if place == "there" or place == "here" then
    local answers = asked(engines, engines[place], charges)
    local allowed = passes(charges[1], answers[1])
    for i = 2, #charges do allowed = allowed and passes(charges[i], answers[i]) end
    return allowed, charges, answers, nil, nil
  end
  local answers
  answers, refused = in_turn(engines, charges, refused)
  return not refused, charges, answers, denied, not refused and held_by(charges, answers) or nil
end

return M
