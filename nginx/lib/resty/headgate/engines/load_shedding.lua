-- Shedding: far above a limit, requests are refused at random before Redis is asked.
--
-- A flood of 10,000/s on a limit of 200/s asks 10,000 questions for 200 answers that matter, and under a fixed window
-- all 200 go to those who came in its first 20 ms. Here most of the flood is shed by a throw of dice: each request may
-- ask Redis with the same chance, so small that Redis is asked for about as much as it has to give. How much that is at
-- any time, pacing.lua says. Redis decides: whatever passes was passed by it.
--
-- What is known of a key stands in the shared dict, for all workers: r:<count> holds what the last answer left and how
-- large the demand is, and n:<count> counts the units that were demanded, shed or not; ten times a second the
-- difference is the demand. Both begin when Redis refuses the key, so a key that never was at its limit costs nothing,
-- and end 2 s after the last request; nothing is displaced for them. What a worker has read of a key it believes until
-- nginx's clock moves on (a millisecond), or it asks Redis itself. Shedding begins 20 ms after the refusal, if the
-- demand is at least twice the limit (this nginx's part of it) and 20 units a second: less than that disturbs nobody.
--
-- Whoever is shed is refused by the rule, with nothing remaining, and told to come back after a random time between
-- nothing and the limit's reset, or a second if that is longer: any instant is as good as any other, and nobody should
-- meet all the others there.
--
-- Laws (tests/nginx/engines/test_load_shedding.py, measured on floods of 50 times the limit):
--   - Redis is asked at most 3 times the limit, however large the flood (but for its first moments: until the first
--     refusal arrives, everybody asks);
--   - at least 98 % of the limit are used, unless the machine itself stands still at the end of a window;
--   - every request has the same chance, whenever it arrives, on whatever connection, at whatever worker; at several
--     nginx, as far as they get the same flood;
--   - the last two do not hold for buckets of fewer than 8 units: whoever comes next takes the unit, a worker that
--     wakes more often comes next more often, and each unit waits for the way to Redis (200/s burst 1: 85 % used);
--   - what an answer left is believed for a second, or for two units' time if that is longer: then somebody asks;
--   - only live rules in Redis without lockout and overrides are shed, and no request with a lockout or something aside
--     among its charges: those have refusals to count;
--   - one shed charge refuses the request: the others were not asked, and have no facts (answers[i] is nil). Such
--     answers come with the word "unasked": they do not show that Redis answers.
--
-- It stands around the denial cache, not within: what that refuses is demand, too. And around prefetching, for the same
-- laws: units that are fetched ahead count as there until a request gets them. Who has slots or units to take first
-- throws the dice before that (`refused`, called by call.lua). Workers must have seeds of their own.

local clock = require "resty.headgate.clock"
local ffi = require "ffi"
local pacing = require "resty.headgate.engines.load_shedding.shed_rate"

local M = {}

local LIFE = 2 -- seconds
local FIRST_US, CELL_US = 20000, 100000
local SMOOTH = 0.1
local LEAST = 20 / 1000000 -- units per microsecond
local SOON_US = 1000000
local AT_ONCE = 16 -- units that a worker counts before it tells the others
local BYTES = pacing.NUMBERS * 8

local DEMAND, MARK, MARK_AT = pacing.DEMAND, pacing.MARK, pacing.MARK_AT
local chance, flooded, learn, spend = pacing.chance, pacing.flooded, pacing.learn, pacing.spend
local floor, max, random = math.floor, math.max, math.random
local cast, copy, text_of, now_us = ffi.cast, ffi.copy, ffi.string, clock.fine_us
local READ = ffi.typeof("const double *")

local state = ffi.new("double[?]", pacing.NUMBERS) -- for what is done without waiting

local Shed = {}
Shed.__index = Shed

-- `inner`: an Engine. `dict`: a shared dict; ours is what begins with r: and n:. `members`: place() is count and rank.
function M.around(inner, dict, members)
  return setmetatable({ inner = inner, dict = dict, members = members }, Shed)
end

-- How a hand's charges are shed, or false.
local function plan_of(hand)
  local terms = hand.terms
  local plan = not terms.aside and not terms.lockout and not terms.overrides and pacing.plan(hand.limit)
  local filed = hand.limit.text .. ":" .. hand.head
  hand.shed = plan and {
    pacing = plan, state = "r:" .. filed, count = "n:" .. filed, came = 0,
    known = ffi.new("double[?]", pacing.NUMBERS), known_key = nil, known_at = 0, -- what was read last
  } or false
  return hand.shed
end

-- Puts what the dict knows of a key into `state`; false if that is nothing.
local function look_up(self, shed, key)
  local text = self.dict:get(shed.state .. key)
  if not text then return false end
  copy(state, cast(READ, text), BYTES)
  return true
end

-- The same for who does not change it: what was read in the same millisecond is good enough.
local function recall(self, shed, key)
  local at = clock.now()
  if shed.known_at == at and shed.known_key == key then
    copy(state, shed.known, BYTES)
    return true
  end
  if not look_up(self, shed, key) then return false end
  copy(shed.known, state, BYTES)
  shed.known_key, shed.known_at = key, at
  return true
end

-- Tells the dict what is in `state`.
local function tell(self, shed, key)
  shed.known_key = nil
  self.dict:safe_set(shed.state .. key, text_of(state, BYTES), LIFE)
end

-- Counts a request. A flood is mostly of one key: this worker counts it by itself, and tells the dict now and then.
local function count(self, shed, charge)
  if shed.key ~= charge.key then
    if shed.came > 0 then self.dict:incr(shed.count .. shed.key, shed.came) end
    shed.key, shed.came = charge.key, 0
  end
  shed.came = shed.came + charge.cost
  if shed.came >= AT_ONCE then
    self.dict:incr(shed.count .. shed.key, shed.came)
    shed.came = 0
  end
end

local function sharers(self) return max(1, (self.members:place())) end

-- Whether it is time to look again.
local function is_due(now) return now - state[MARK_AT] > (state[DEMAND] == 0 and FIRST_US or CELL_US) end

-- Looks what the demand was since the last time, unless another worker just has.
local function measure(self, shed, key, now)
  local came = self.dict:get(shed.count .. key)
  if not came or not look_up(self, shed, key) then
    self.dict:delete(shed.state .. key) -- without its count it says nothing
    return
  end
  if not is_due(now) then return end
  local fresh = (came - state[MARK]) / (now - state[MARK_AT])
  local known = state[DEMAND]
  if known == 0 or fresh > 2 * known then known = fresh else known = known + SMOOTH * (fresh - known) end
  state[DEMAND], state[MARK], state[MARK_AT] = known, came, now
  pacing.share(shed.pacing, state, sharers(self), now)
  self.dict:expire(shed.count .. key, LIFE)
  tell(self, shed, key)
end

-- Counts this request, and throws the dice. `state` is that of its key.
local function passes(self, shed, charge, now)
  count(self, shed, charge)
  if is_due(now) then measure(self, shed, charge.key, now) end
  if not flooded(shed.pacing, state, LEAST) then return true end
  return random() < chance(shed.pacing, state, now, charge.cost)
end

-- The facts of whoever is shed; `state` is that of the key.
local function refusal(shed, now)
  local reset = pacing.reset(shed.pacing, state, now)
  local wait = floor(random() * max(reset, SOON_US)) + 1
  return { 0, 0, wait, reset, 0, clock.wall_us(), 0 }
end

-- Redis has refused: from now on the key's demand is counted.
local function begin(self, shed, charge, facts, asked, now)
  pacing.begin(state, now, sharers(self))
  learn(shed.pacing, state, charge.cost, facts, asked, now)
  if self.dict:safe_add(shed.count .. charge.key, 0, LIFE) then
    self.dict:safe_add(shed.state .. charge.key, text_of(state, BYTES), LIFE)
  end
end

-- What an answer says about a key whose demand is counted, or is from now on.
local function heed(self, charge, facts, asked)
  local shed = charge.hand.shed
  if not shed or not facts or charge.cost <= 0 then return end
  local now = now_us()
  if look_up(self, shed, charge.key) then
    learn(shed.pacing, state, charge.cost, facts, asked, now)
    tell(self, shed, charge.key)
  elseif facts[1] == 0 then
    begin(self, shed, charge, facts, asked, now)
  end
end

-- Notes that this charge goes on to ask.
local function asks(self, charge, now)
  local shed = charge.hand.shed
  if not shed or not look_up(self, shed, charge.key) then return end
  spend(shed.pacing, state, now, charge.cost)
  tell(self, shed, charge.key)
end

local function must_count(charge)
  local terms = charge.hand.terms
  return terms.aside or terms.lockout ~= nil
end

local function counts_refusals(charges)
  for i = 1, #charges do
    if must_count(charges[i]) then return true end
  end
  return false
end

-- Whether the demand of this charge is counted; and if it is shed, its facts. The dice are thrown once for a charge.
local function thrown(self, charge, now)
  if charge.admitted ~= nil then return charge.admitted, nil end
  local shed = charge.hand.shed
  if shed == nil then shed = plan_of(charge.hand) end
  if not shed or charge.cost <= 0 or not recall(self, shed, charge.key) then return false, nil end
  if passes(self, shed, charge, now) then return true, nil end
  return true, refusal(shed, now)
end

local function all_pass(charges, answers)
  for i = 1, #charges do
    if not answers[i] or answers[i][1] ~= 1 then return false end
  end
  return true
end

-- The answer to the first charge that is shed, or refused without asking by who is behind; nil if none is. Those that
-- are not shed here are not shed later on.
function Shed:refused(charges)
  local now = now_us()
  for i = 1, #charges do
    local charge = charges[i]
    if not must_count(charge) then
      local counted, facts = thrown(self, charge, now)
      if facts then return { [i] = facts } end
      charge.admitted = counted
    end
  end
  return self.inner:refused(charges)
end

function Shed:decide(charges, commit, deadline)
  if commit ~= 1 or counts_refusals(charges) then return self.inner:decide(charges, commit, deadline) end
  local now, known = now_us(), false
  for i = 1, #charges do
    local counted, facts = thrown(self, charges[i], now)
    if facts then return { [i] = facts }, "unasked" end
    known = known or counted
  end
  if known then
    for i = 1, #charges do asks(self, charges[i], now) end
  end
  local answers, word = self.inner:decide(charges, commit, deadline)
  if not answers then return nil, word end
  if known or not all_pass(charges, answers) then
    for i = 1, #charges do heed(self, charges[i], answers[i], now) end
  end
  return answers, word
end

-- The same of one charge.
function Shed:take(charge, deadline)
  if must_count(charge) then return self.inner:take(charge, deadline) end
  local now = now_us()
  local known, facts = thrown(self, charge, now)
  if facts then return facts, "unasked" end
  if known then asks(self, charge, now) end
  local word
  facts, word = self.inner:take(charge, deadline)
  if not facts then return nil, word end
  if known or facts[1] ~= 1 then heed(self, charge, facts, now) end
  return facts, word
end

function Shed:refund(charge, facts, deadline) return self.inner:refund(charge, facts, deadline) end

function Shed:acquire(charge, deadline) return self.inner:acquire(charge, deadline) end

function Shed:renew(charge, fence, deadline) return self.inner:renew(charge, fence, deadline) end

function Shed:release(charge, fence, deadline) return self.inner:release(charge, fence, deadline) end

return M
