-- Decides inside Redis or Valkey, by one EVALSHA for each question: the Engine of a gateway that has a server.
--
--   engine.open(url, { prefix = "hg" })      an engine, or nil and a sentence
--   :use(plate, texts)                       a plate is in force: its scripts by name, texts by SHA1, and its zones
--   :decide(charges, commit, deadline)       facts for each charge; commit 1, or 0 to be told only
--   :take(charge, deadline)                  facts for one
--   :refund(charge, facts, deadline)         gives back what that charge took; facts after it
--   :override(charge, text, deadline)        the numbers of its key's own limit of this text; false if it has none
--   :acquire(charge, deadline)               a slot: facts, of which mark is the fence
--   :renew(charge, fence, deadline), :release(charge, fence, deadline)          whether that lease was still there
--   :ask(words, tag, deadline)               a plain command; `tag` tells the slot, if it is not the first key
--   :run(script, key, words, tag, deadline)  one of the plate's scripts on a key of another kind: members
--   :shard(key)                              which part of the server answers for a key
--
-- All but open, use and shard wait for a socket: they can be called where nginx lets Lua wait (rewrite, access,
-- content, timers) and not where it does not (log, header filters). A deadline is seconds for everything together, and
-- never more than the URL's. What fails is nil and Trouble.
--
-- Laws (tests/nginx/redis): a single charge with nothing beside it is one take; several of one algorithm, with nothing
-- beside them, are as many takes in one script; all others are decided together by the smallest script that covers
-- them; where a calendar's window ended in between, it is asked once more from the server's time; a question that was
-- sent and not answered is never asked again. Scripts and zones of an older plate stay known: its hands may still be
-- asked.

local apart = require "resty.headgate.engines.redis.cross_slot"
local around = require "resty.headgate.engines.redis.redirects"
local convoy = require "resty.headgate.engines.redis.batching"
local line = require "resty.headgate.engines.redis.connection"
local naming = require "resty.headgate.engines.redis.keys"
local questions = require "resty.headgate.engines.redis.commands"
local resp = require "resty.headgate.engines.redis.resp"
local servers = require "resty.headgate.engines.redis.topology"
local sha256 = require "resty.headgate.text.sha256"
local trouble = require "resty.headgate.engines.redis.errors"
local urls = require "resty.headgate.engines.redis.url"

local now = require("resty.headgate.clock").now
local ask, ask_together = line.ask, convoy.ask
local bind, escaped, take, COMMIT = questions.bind, questions.escaped, questions.take, questions.COMMIT
local packed_of = questions.packed

local M = {}

local OUTSIDE = -2

local Engine = {}
Engine.__index = Engine

function M.open(url, chosen)
  local said, why = urls.read(url)
  if not said then return nil, why end
  local topology = servers.open(said)
  return setmetatable({
    prefix = chosen and chosen.prefix or "hg", deadline = said.patience, said = said, topology = topology,
    only = topology.only, text = topology.text, scripts = {}, texts = {}, zones = {}, joints = {},
  }, Engine)
end

local function put(into, more)
  for name, value in pairs(more or {}) do into[name] = value end
end

function Engine:use(bundle, texts)
  put(self.scripts, bundle.scripts)
  put(self.zones, bundle.zones)
  put(self.texts, texts)
  self.joints = {}
end

local function by_of(self, deadline)
  local seconds = self.deadline
  if deadline and deadline < seconds then seconds = deadline end
  return now() + seconds
end

-- The reply to a question, by then. `sha` names the script that it needs: such replies are short, so they go in
-- convoys.
function Engine:asked(question, sha, tag, by)
  local address = self.only or self.topology:node(tag)
  local reply, failure
  if address then
    if sha then
      reply, failure = ask_together(address, question, by)
    else
      reply, failure = ask(address, question.packed, by)
    end
    if reply ~= nil then return reply end
  end
  return around.answered(self.topology, address, failure, packed_of(question), sha and self.texts[sha], tag, by)
end

function Engine:told(failure) return trouble.told(self.text, self.prefix, failure, self.topology.instead) end

-- Nothing is refused without asking: that is for those who stand around this engine.
function Engine.refused() return nil end

-- A calendar's numbers at this instant, microseconds.
function Engine:numbers(limit, now_us)
  return require("resty.headgate.calendar").numbers(limit, self.zones, now_us)
end

local function now_us() return math.floor(now() * 1000000) end

local function lacking(what) return trouble.wrong("the plate in force has no script for " .. what) end

-- The hand's questions; nil and trouble if its plate has no script for them.
local function known_of(self, bound_limit)
  local known = bound_limit.redis
  if known and known.take then return known end
  known = bind(bound_limit, self.scripts, self.prefix)
  if not known.take then return nil, lacking(bound_limit.limit.algorithm) end
  return known
end

-- A question of charges that are alike: it may be joined with others where one server has all counts.
local function joinable(self, charges, sha)
  return self.topology.joins and questions.joinable(charges, sha, self.texts)
end

local function taken(self, charges, known, by, at_us)
  local charge = charges[1]
  local question, name = joinable(self, charges, known.take), escaped(charge.key)
  if not question then
    local numbers = at_us and self:numbers(charge.bound_limit.limit, at_us)
    question = { packed = take(known, name, charge.cost, numbers) }
  end
  return self:asked(question, known.take, name, by)
end

local function no_decision() return trouble.wrong("it answered what is no decision") end

local function decide_one(self, charges, known, by)
  local outcome, failure = taken(self, charges, known, by, known.calendar and now_us() or nil)
  if type(outcome) == "table" and outcome[1] == OUTSIDE then outcome, failure = taken(self, charges, known, by, outcome[2]) end
  if type(outcome) == "table" and outcome[7] then return { outcome } end
  return nil, self:told(failure or no_decision())
end

-- The words of a text, each once and in order.
local function sorted(text)
  local seen, found = {}, {}
  for word in string.gmatch(text, "%S+") do
    if not seen[word] then seen[word], found[#found + 1] = true, word end
  end
  table.sort(found)
  return found
end

local function covers(name, wanted)
  for _, word in ipairs(wanted) do
    if not string.find(name .. " ", " " .. word .. " ", 1, true) then return false end
  end
  return true
end

-- The smallest script of several charges that has all these models.
local function smallest(scripts, wanted)
  local exact = scripts["take_all " .. table.concat(wanted, " ")]
  if exact then return exact end
  local found, least
  for name, sha in pairs(scripts) do
    if string.sub(name, 1, 9) == "take_all " and covers(name, wanted) and (not least or #name < least) then
      found, least = sha, #name
    end
  end
  return found
end

-- The script of charges that look at nothing but their counts and are of one algorithm; nil if they are not so, or if
-- the plate is older than that script. All hands are bound by this.
local function alike(self, charges)
  local bound_limit = charges[1].bound_limit
  local first = bound_limit.redis or bind(bound_limit, self.scripts, self.prefix)
  local sha = first.options == nil and first.together
  for i = 2, #charges do
    bound_limit = charges[i].bound_limit
    local known = bound_limit.redis or bind(bound_limit, self.scripts, self.prefix)
    sha = sha and known.options == nil and known.together == sha and sha
  end
  return sha or nil
end

-- The script of any charges, whose hands are bound; or nil and trouble.
local function joint(self, charges)
  local uses = ""
  for i = 1, #charges do uses = uses .. charges[i].bound_limit.redis.uses end
  local sha = self.joints[uses]
  if not sha then
    local wanted = sorted(uses)
    sha = smallest(self.scripts, wanted)
    if not sha then return nil, lacking(table.concat(wanted, ", ") .. " together") end
    self.joints[uses] = sha
  end
  return sha
end

-- Outcome for each of so many charges, of the one row that says that all of them pass.
local function all_passed(row, count)
  if #row ~= 1 + 4 * count then return nil, nil, no_decision() end
  local at_us, outcome = row[1], {}
  for i = 1, count do
    local n = i * 4
    outcome[i] = { 1, row[n - 2], 0, row[n - 1], row[n], at_us, row[n + 1] }
  end
  return outcome
end

-- Outcome for each; nil and the server's time where that lies outside of the calendar; or nil, nil and trouble. `pack`
-- is questions.alike, or questions.together.
local function asked_together(self, pack, charges, sha, commit, by, at_us)
  local question = pack == questions.alike and joinable(self, charges, sha)
  question = question or { packed = pack(charges, sha, commit, self, at_us) }
  local reply, failure = self:asked(question, sha, escaped(charges[1].key), by)
  if reply == nil then return nil, nil, failure end
  local first = type(reply) == "table" and reply[1]
  if type(first) == "number" then return all_passed(reply, #charges) end
  if type(first) ~= "table" then return nil, nil, no_decision() end
  if first[1] == OUTSIDE then return nil, first[2] end
  if #reply ~= #charges then return nil, nil, no_decision() end
  return reply
end

-- Several charges, decided by one script: facts for each, or nil and trouble (as it is, not told).
function Engine:decide_together(charges, commit, by)
  local sha, pack = alike(self, charges), questions.alike
  if not sha or commit ~= COMMIT then
    local lacks
    sha, lacks = joint(self, charges)
    if not sha then return nil, lacks end
    pack = questions.together
  end
  local outcome, server_us, failure = asked_together(self, pack, charges, sha, commit, by, now_us())
  if server_us then outcome, server_us, failure = asked_together(self, pack, charges, sha, commit, by, server_us) end
  if server_us then return nil, trouble.not_now("a window of the calendar ended in between") end
  return outcome, failure
end

function Engine:decide(charges, commit, deadline)
  local by = by_of(self, deadline)
  local charge = charges[1]
  if charges[2] == nil and commit == 1 then
    local known, lacks = known_of(self, charge.bound_limit)
    if not known then return nil, self:told(lacks) end
    if known.alone then return decide_one(self, charges, known, by) end
  end
  local outcomes, failure
  if self.topology.joins then
    outcomes, failure = self:decide_together(charges, commit, by)
  else
    outcomes, failure = apart.decide(self, charges, commit, by)
  end
  if not outcomes then return nil, self:told(failure) end
  return outcomes
end

-- The same of one charge.
function Engine:take(charge, deadline)
  local outcomes, failure = self:decide({ charge }, COMMIT, deadline)
  return outcomes and outcomes[1], failure
end

-- The numbers that an override of this text has in the place of the hand's own; false if it has changed meanwhile,
-- nil if nobody answers.
local function overridden(self, charge, name, text, by, at_us)
  local known, limit = charge.bound_limit.redis, charge.bound_limit.limit
  local stored = self:asked({ packed = resp.command { "GET", known.override .. name .. "}" } }, nil, name, by)
  if stored == nil then return nil end
  for algorithm, numbers, said in string.gmatch(stored or "", "([%w_]+) ([^|\n]*)|([^\n]*)") do
    if said == text and algorithm == limit.algorithm then
      local words = {}
      for word in string.gmatch(numbers, "%S+") do words[#words + 1] = word end
      return words
    elseif said == text and algorithm == "calendar" and known.calendar then
      local words = { unpack(self:numbers(limit, at_us)) }
      words[1] = numbers
      return words
    end
  end
  return false
end

function Engine:override(charge, text, deadline)
  if not known_of(self, charge.bound_limit) then return nil end
  return overridden(self, charge, escaped(charge.key), text, by_of(self, deadline), now_us())
end

-- Gives a charge back (trouble as it is, not told).
function Engine:given_back(charge, outcome, by)
  local bound_limit = charge.bound_limit
  local known, lacks = known_of(self, bound_limit)
  if not known then return nil, lacks end
  local name, at_us = escaped(charge.key), now_us()
  for _ = 1, 2 do
    local numbers = outcome[8] and overridden(self, charge, name, outcome[8], by, at_us)
    if not numbers and known.calendar then numbers = self:numbers(bound_limit.limit, at_us) end
    local question = { packed = questions.refund(charge, name, outcome, numbers) }
    local reply, failure = self:asked(question, known.back, name, by)
    if type(reply) ~= "table" then return nil, failure or no_decision() end
    if reply[1] ~= OUTSIDE then return reply end
    at_us = reply[2]
  end
  return nil, trouble.not_now("a window of the calendar ended in between")
end

function Engine:refund(charge, outcome, deadline)
  local reply, failure = self:given_back(charge, outcome, by_of(self, deadline))
  if not reply then return nil, self:told(failure) end
  return reply
end

function Engine:run(script, key, words, tag, deadline)
  local sha = self.scripts[script]
  if not sha then return nil, self:told(lacking(script)) end
  local question = { packed = questions.run(sha, key, words) }
  local reply, failure = self:asked(question, sha, tag or key, by_of(self, deadline))
  if reply == nil then return nil, self:told(failure) end
  return reply
end

local function slots(self, charge, deadline, verb, ...)
  local words = { verb, unpack(charge.bound_limit.limit.numbers) }
  for _, word in ipairs { ... } do words[#words + 1] = word end
  local key = naming.tagged(charge.bound_limit.head, charge.key, sha256)
  return self:run("slots", key, words, escaped(charge.key), deadline)
end

function Engine:acquire(charge, deadline) return slots(self, charge, deadline, "acquire", "", "0") end

function Engine:renew(charge, fence, deadline)
  local reply, failure = slots(self, charge, deadline, "renew", fence)
  if not reply then return nil, failure end
  return reply[1] == 1
end

function Engine:release(charge, fence, deadline)
  local reply, failure = slots(self, charge, deadline, "release", fence)
  if not reply then return nil, failure end
  return reply == 1
end

function Engine:ask(words, tag, deadline)
  local question = { packed = resp.command(words) }
  local reply, failure = self:asked(question, nil, tag or words[2] or "", by_of(self, deadline))
  if reply == nil then return nil, self:told(failure) end
  return reply
end

function Engine:shard(key)
  if self.topology.joins then return "" end
  local owner = self.topology:owner(escaped(key))
  return owner and owner.text or ""
end

return M
