-- An answer for every request, also when Redis gives none: within the rule's deadline, and never an error.
--
--   fallback.around(inner, here, members, { fallback = "local" })
--
-- stands around what asks Redis (`inner`) and is an Engine itself. While Redis answers, questions go straight through.
-- When it does not, or its breaker says that it would not (breaker.lua), each charge is answered by its rule's word:
--
--   allow   it passes, with nothing remaining
--   deny    it is refused for a second
--   local   it is judged by this nginx's share of the limit, among all who share it (members.lua), on the shared dict,
--           all workers together, under names that nothing else has
--
-- Rules of one request keep each its own word. One that refuses refuses for all, and no share is charged then. What is
-- aside passes and is not counted. Meanwhile nobody is locked out, and a key with an override has a share of its rule's
-- limit. Slots are slots of a share, too; who has one keeps it until it is released, whatever Redis does meanwhile. A
-- slot that Redis gave without our hearing of it is lost until its ttl.
--
-- Outcome that were found so are `degraded`: "local" if a share was charged, which can be given back, and true otherwise.
-- The share that gave something stands on its charge (charge.share), so refunds and releases go to whoever gave it.
--
-- What is admitted. Redis's counts and the shares' counts know nothing of each other, and each keeps its own: a share
-- is not fresh again at the next outage, and Redis's counts are not after one, unless its memory is. In any window:
--
--   by Redis              at most the limit; once more for each time that it lost its memory
--   by all shares         at most the limit, as long as the members agree who they are. Where they were told only their
--                         number (nodes=N): at most its rate, and one unit at once for each member if its burst is less
--   together              at most twice the limit, however often Redis comes and goes; with allow, anything
--
-- (Of a smooth limit each share begins with the one unit that passes at once; and a share of a sliding log copies its
-- instants at each decision, so one of many thousand units is slow.)
--
-- Laws (tests/nginx/test_fallback*.py): as told; decide and acquire never answer nil; a share is charged only if the
-- whole request passes; what one share gave goes back to that share or to nobody.

local breaker = require "resty.headgate.engines.fallback.breaker"
local clock = require "resty.headgate.clock"
local share = require "resty.headgate.engines.fallback.limit_share"

local M = {}

local RETRY_US = 1000000 -- when to come back: by then Redis has been probed again
local PATIENCE = 0.05 -- seconds that a share may wait for its lock

local now_us = clock.wall_us

local Fallback = {}
Fallback.__index = Fallback

-- `here`: the engine on the shared dict. `members`: place(), and the Redis engine that all of them share. `chosen`:
-- fallback, of rules that do not say.
function M.around(inner, here, members, chosen)
  return setmetatable({
    inner = inner, here = here, members = members, default = chosen.fallback or "local",
    breakers = breaker.of(members.engine), shares = setmetatable({}, { __mode = "k" }),
  }, Fallback)
end

local function pass() return { 1, 0, 0, 0, 0, now_us(), 0, degraded = true } end

local function refusal() return { 0, 0, RETRY_US, 0, 0, now_us(), 0, degraded = true } end

local function word_of(charge, default)
  local terms = charge.hand.terms
  return terms.aside and "allow" or terms.fallback or default
end

-- The hand on this nginx's share of a hand's limit; nil if there is no share for it.
local function hand_on_share(hand, count, rank)
  local part = share.share(hand.limit, count, rank)
  if not part then return nil end
  return {
    rule = hand.rule, name = hand.name, limit = part, head = "f:" .. hand.head, where = "here", here = true,
    terms = { rule = hand.terms.rule, aside = false, overrides = false, deadline = hand.terms.deadline },
  }
end

-- The charge on the share, noted on the charge itself; nil if there is no share for us.
local function share_of(self, charge)
  local hand, count, rank = charge.hand, self.members:place()
  local known = self.shares[hand]
  if not known or known.count ~= count or known.rank ~= rank then
    known = { count = count, rank = rank, hand = hand_on_share(hand, count, rank) }
    self.shares[hand] = known
  end
  charge.share = known.hand and { hand = known.hand, key = charge.key, cost = charge.cost }
  return charge.share
end

-- A share's facts as ours. What a share can never hold, the whole limit may.
local function by_share(charge, facts, charged)
  facts.degraded = charged and "local" or true
  if facts[1] ~= 1 and facts[3] < 0 and charge.cost <= charge.hand.limit.fresh then facts[3] = RETRY_US end
  return facts
end

local function all_pass(answers)
  for i = 1, #answers do
    if answers[i][1] ~= 1 then return false end
  end
  return true
end

-- Puts the answers of the shares in their places; refusals, if the dict gives none.
local function judge_shares(self, charges, places, commit, answers)
  local asked = {}
  for i, place in ipairs(places) do asked[i] = charges[place].share end
  local found, trouble = self.here:decide(asked, commit, PATIENCE)
  if not found then self.breakers:tell("a share gave no answer either, and refuses: " .. trouble.text) end
  local charged = found and commit == 1 and all_pass(found)
  for i, place in ipairs(places) do
    answers[place] = found and by_share(charges[place], found[i], charged) or refusal()
  end
end

-- The answers without Redis.
local function instead(self, charges, commit)
  local answers, places, refused = {}, {}, false
  for i, charge in ipairs(charges) do
    local word = word_of(charge, self.default)
    if word == "allow" then
      answers[i] = pass()
    elseif word == "local" and share_of(self, charge) then
      places[#places + 1] = i
    else
      answers[i], refused = refusal(), true
    end
  end
  if places[1] then judge_shares(self, charges, places, refused and 0 or commit, answers) end
  self.breakers.unanswered = self.breakers.unanswered + 1
  return answers
end

local function asked(self, charges, commit, deadline)
  local breakers = self.breakers
  local calm, turn = breakers.calm, breakers.turn
  local answers, word = self.inner:decide(charges, commit, deadline)
  if not answers then
    breakers:failed(charges, word, deadline, turn)
    return instead(self, charges, commit)
  end
  if not calm and word ~= "unasked" then breakers:answered(charges, answers, turn) end
  return answers
end

-- The long way, while some part of the server is not to be asked. What is aside there is in nobody's way.
local function around(self, charges, commit, deadline)
  local few, places = {}, {}
  for i, charge in ipairs(charges) do
    if self.breakers:at(charge.key):passes(deadline) then
      few[#few + 1], places[#few + 1] = charge, i
    elseif not charge.hand.terms.aside then
      return instead(self, charges, commit)
    end
  end
  if #few == #charges then return asked(self, charges, commit, deadline) end
  local answers = {}
  for i = 1, #charges do answers[i] = pass() end
  local found = few[1] and asked(self, few, commit, deadline) or {}
  for i, place in ipairs(places) do answers[place] = found[i] end
  return answers
end

function Fallback:decide(charges, commit, deadline)
  if self.breakers.calm then return asked(self, charges, commit, deadline) end
  return around(self, charges, commit, deadline)
end

-- The same of one charge, as the engine behind has it: its Outcome.
function Fallback:take(charge, deadline)
  local breakers = self.breakers
  if not breakers.calm then return around(self, { charge }, 1, deadline)[1] end
  local turn = breakers.turn
  local facts, word = self.inner:take(charge, deadline)
  if facts then return facts end
  breakers:failed({ charge }, word, deadline, turn)
  return instead(self, { charge }, 1)[1]
end

-- The answers to those charges that are refused without asking, in their places; nil if none is. While Redis does not
-- answer, none is: shares decide.
function Fallback:refused(charges)
  if not self.breakers.calm then return nil end
  return self.inner:refused(charges)
end

-- One question about one charge, if anybody is to be asked: its answer, or nil and Trouble.
local function try(self, charge, deadline, verb, ...)
  local breakers, inner = self.breakers, self.inner
  local one = breakers:at(charge.key)
  if not one:passes(deadline) then return nil, one.trouble end
  local turn = breakers.turn
  local answer, trouble = inner[verb](inner, charge, ...)
  if answer == nil then
    breakers:failed({ charge }, trouble, deadline, turn)
  else
    one:answered(turn)
  end
  return answer, trouble
end

function Fallback:refund(charge, facts, deadline)
  if facts.degraded == "local" and charge.share then
    local after, trouble = self.here:refund(charge.share, facts, PATIENCE)
    if not after then return nil, trouble end
    return by_share(charge, after, false)
  end
  if facts.degraded then return facts end
  return try(self, charge, deadline, "refund", facts, deadline)
end

local function acquire_here(self, charge)
  self.breakers.unanswered = self.breakers.unanswered + 1
  local word = word_of(charge, self.default)
  if word == "allow" then return pass() end
  if word ~= "local" or not share_of(self, charge) then return refusal() end
  local facts, trouble = self.here:acquire(charge.share, PATIENCE)
  if facts then return by_share(charge, facts, facts[1] == 1) end
  self.breakers:tell("a share gave no slot, and refuses: " .. trouble.text)
  return refusal()
end

function Fallback:acquire(charge, deadline)
  charge.share = nil
  return try(self, charge, deadline, "acquire", deadline) or acquire_here(self, charge)
end

function Fallback:renew(charge, fence, deadline)
  if charge.share then return self.here:renew(charge.share, fence, PATIENCE) end
  return try(self, charge, deadline, "renew", fence, deadline)
end

function Fallback:release(charge, fence, deadline)
  if charge.share then return self.here:release(charge.share, fence, PATIENCE) end
  return try(self, charge, deadline, "release", fence, deadline)
end

local told_at = -math.huge
local TELL_EVERY = 60 -- seconds

-- The last resort, where not even the shared dict gives an answer: local counts as deny.
function M.without(charges, trouble)
  local at = clock.now()
  if at < told_at or at - told_at >= TELL_EVERY then
    told_at = at
    ngx.log(ngx.ERR, "headgate: rules are allowed or denied unseen. ", trouble and trouble.text or "")
  end
  local answers = {}
  for i, charge in ipairs(charges) do
    answers[i] = word_of(charge, "local") == "allow" and pass() or refusal()
  end
  return answers
end

return M
