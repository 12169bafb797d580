-- Decides inside Redis or Valkey, by one EVALSHA for each request: the Engine of a gateway that has a server.
--
--   engine.open(url, { prefix = "hg" })      an engine, or nil and a sentence
--   :use(bundle, texts)                      uses a bundle: its scripts by name, texts by SHA1, and its zones
--   :decide(charges, commit, deadline)       an outcome for each charge; commit 1, or 0 to peek
--   :take(charge, deadline)                  the outcome of one
--   :refund(charge, outcome, deadline)       refunds that charge; the outcome after it
--   :override(limit, line, at_us)            the numbers and the text of the override that decided a charge
--   :acquire(charge, deadline)               a slot: an outcome, of which mark is the fence
--   :renew(charge, fence, deadline), :release(charge, fence, deadline)          whether that lease was still held
--   :command(args, tag, deadline)            a plain command; `tag` determines the slot, if it is not the first key
--   :run_script(name, key, args, tag, deadline)  one of the bundle's scripts on another key: membership
--   :run_script_alone(name, keys, args, tag, deadline)  the same on several keys of one slot, apart from all batches:
--                                            no request waits behind it. Its failure is not explained
--   :shard(key)                              the shard of the server that owns a key
--
-- All but open, use, override and shard wait for a socket: they can be called where nginx lets Lua wait (rewrite,
-- access, content, timers) and not elsewhere (log, header filters). A deadline is seconds for everything together, and
-- never more than the URL's. A failed call returns nil and a Failure.
--
-- Laws (tests/nginx/engines/redis): a single charge without lockout, overrides and pauses is one take; several of one
-- algorithm, without options, are as many takes in one script; all others are decided together by the smallest script
-- that covers them; where a calendar's window ended in between, the request is repeated once with the server's time; a
-- request that was sent and not answered is never repeated. Scripts and zones of an older bundle stay known: its bound
-- limits may still be used.

local batching = require "resty.headgate.engines.redis.batching"
local commands = require "resty.headgate.engines.redis.commands"
local connection = require "resty.headgate.engines.redis.connection"
local cross_slot = require "resty.headgate.engines.redis.cross_slot"
local errors = require "resty.headgate.engines.redis.errors"
local keys = require "resty.headgate.engines.redis.keys"
local redirects = require "resty.headgate.engines.redis.redirects"
local resp = require "resty.headgate.engines.redis.resp"
local sha256 = require "resty.headgate.text.sha256"
local topologies = require "resty.headgate.engines.redis.topology"
local urls = require "resty.headgate.engines.redis.url"

local now = require("resty.headgate.clock").now
local request_directly, request_batched = connection.request, batching.request
local bind, escaped, take, COMMIT = commands.bind, commands.escaped, commands.take, commands.COMMIT
local encode, joinable = commands.encode, commands.joinable

local M = {}

local OUTSIDE_CALENDAR, PAUSED = -2, -4

local Engine = {}
Engine.__index = Engine

function M.open(url, settings)
  local parsed_url, why = urls.parse(url)
  if not parsed_url then return nil, why end
  local topology = topologies.open(parsed_url)
  return setmetatable({
    prefix = settings and settings.prefix or "hg", deadline = parsed_url.timeout, parsed_url = parsed_url,
    topology = topology, single_address = topology.single_address, text = topology.text,
    scripts = {}, texts = {}, zones = {}, take_all_shas = {},
  }, Engine)
end

local function merge(target, entries)
  for name, value in pairs(entries or {}) do target[name] = value end
end

function Engine:use(bundle, texts)
  merge(self.scripts, bundle.scripts)
  merge(self.zones, bundle.zones)
  merge(self.texts, texts)
  self.take_all_shas = {}
end

local function deadline_at_of(self, deadline)
  local seconds = self.deadline
  if deadline and deadline < seconds then seconds = deadline end
  return now() + seconds
end

-- Sends a request, and returns the reply by deadline_at. `sha` names the script that it needs: such replies are short,
-- so they are batched.
function Engine:request(request, sha, tag, deadline_at)
  local address = self.single_address or self.topology:node(tag)
  local reply, failure
  if address then
    if sha then
      reply, failure = request_batched(address, request, deadline_at)
    else
      reply, failure = request_directly(address, request.packed, deadline_at)
    end
    if reply ~= nil then return reply end
  end
  return redirects.request(self.topology, address, failure, encode(request), sha and self.texts[sha], tag, deadline_at)
end

function Engine:explain(failure) return errors.explain(self.text, self.prefix, failure, self.topology.suggested_url) end

-- This engine refuses nothing without asking: only the layers around it do.
function Engine.refused() return nil end

-- Returns a calendar's numbers at this instant, microseconds.
function Engine:numbers(limit, now_us)
  return require("resty.headgate.calendar").numbers(limit, self.zones, now_us)
end

local function now_us() return math.floor(now() * 1000000) end

-- Turns the reply for a paused key into a refusal; how long the pause still lasts follows at `index`.
local function paused_outcome(reply, index)
  reply[1], reply.paused_us = 0, reply[index]
  for i = 8, index do reply[i] = nil end
  return reply
end

local function missing_script(purpose) return errors.unusable("the current bundle has no script for " .. purpose) end

-- Returns the encoding of a bound limit's requests; nil and a failure if the bundle has no script for them.
local function encoding_of(self, bound_limit)
  local encoding = bound_limit.redis
  if encoding and encoding.take_sha then return encoding end
  encoding = bind(bound_limit, self.scripts, self.prefix)
  if not encoding.take_sha then return nil, missing_script(bound_limit.limit.algorithm) end
  return encoding
end

-- Sends one charge. Where one server has all counts, it may be joined with others.
local function send_take(self, charge, encoding, deadline_at, at_us)
  local request = self.topology.spans_keys and joinable({ charge }, encoding.take_sha, self.texts)
  local key_text = escaped(charge.key)
  if not request then
    local numbers = at_us and self:numbers(charge.bound_limit.limit, at_us)
    request = { packed = take(encoding, key_text, charge.cost, numbers) }
  end
  return self:request(request, encoding.take_sha, key_text, deadline_at)
end

local function not_a_decision() return errors.unusable("it answered what is no decision") end

-- Returns the words of a text, each once and sorted.
local function sorted(text)
  local listed, result = {}, {}
  for model in string.gmatch(text, "%S+") do
    if not listed[model] then listed[model], result[#result + 1] = true, model end
  end
  table.sort(result)
  return result
end

local function covers(script_name, models)
  for _, model in ipairs(models) do
    if not string.find(script_name .. " ", " " .. model .. " ", 1, true) then return false end
  end
  return true
end

-- Returns the smallest script of several charges that has all these models.
local function smallest_script(scripts, models)
  local exact = scripts["take_all " .. table.concat(models, " ")]
  if exact then return exact end
  local result, shortest
  for name, sha in pairs(scripts) do
    if string.sub(name, 1, 9) == "take_all " and covers(name, models) and (not shortest or #name < shortest) then
      result, shortest = sha, #name
    end
  end
  return result
end

-- Returns the script of charges without options that are of one algorithm; nil if they are not, or if the bundle is
-- older than that script. It binds all limits.
local function together_sha(self, charges)
  local bound_limit = charges[1].bound_limit
  local first = bound_limit.redis or bind(bound_limit, self.scripts, self.prefix)
  local sha = first.options == nil and first.together_sha
  for i = 2, #charges do
    bound_limit = charges[i].bound_limit
    local encoding = bound_limit.redis or bind(bound_limit, self.scripts, self.prefix)
    sha = sha and encoding.options == nil and encoding.together_sha == sha and sha
  end
  return sha or nil
end

-- Returns the script of any charges, whose limits are bound; or nil and a failure.
local function take_all_sha(self, charges)
  local model_names = ""
  for i = 1, #charges do model_names = model_names .. charges[i].bound_limit.redis.model_names end
  local sha = self.take_all_shas[model_names]
  if not sha then
    local models = sorted(model_names)
    sha = smallest_script(self.scripts, models)
    if not sha then return nil, missing_script(table.concat(models, ", ") .. " together") end
    self.take_all_shas[model_names] = sha
  end
  return sha
end

-- Returns an Outcome for each charge, from the short reply that says that all of them pass.
local function all_passed(reply, count)
  if #reply ~= 1 + 4 * count then return nil, nil, not_a_decision() end
  local at_us, outcomes = reply[1], {}
  for i = 1, count do
    local n = i * 4
    outcomes[i] = { 1, reply[n - 2], 0, reply[n - 1], reply[n], at_us, reply[n + 1] }
  end
  return outcomes
end

-- Sends several charges. Returns an Outcome for each; nil and the server's time if that is outside of the calendar's
-- windows; or nil, nil and a failure. `encode_charges` is commands.take_together or commands.take_all.
local function send_together(self, encode_charges, charges, sha, commit, deadline_at, at_us)
  local can_join = encode_charges == commands.take_together and self.topology.spans_keys
  local request = can_join and joinable(charges, sha, self.texts)
  request = request or { packed = encode_charges(charges, sha, commit, self, at_us) }
  local reply, failure = self:request(request, sha, escaped(charges[1].key), deadline_at)
  if reply == nil then return nil, nil, failure end
  local first_row = type(reply) == "table" and reply[1]
  if type(first_row) == "number" then return all_passed(reply, #charges) end
  if type(first_row) ~= "table" then return nil, nil, not_a_decision() end
  if first_row[1] == OUTSIDE_CALENDAR then return nil, first_row[2] end
  for i = 1, #reply do
    if reply[i][1] == PAUSED then paused_outcome(reply[i], 8) end
  end
  if #reply ~= #charges then return nil, nil, not_a_decision() end
  return reply
end

-- Decides several charges by one script: an outcome for each, or nil and a failure (not explained yet).
function Engine:decide_in_one(charges, commit, deadline_at)
  local sha, encode_charges = together_sha(self, charges), commands.take_together
  if not sha or commit ~= COMMIT then
    local no_script
    sha, no_script = take_all_sha(self, charges)
    if not sha then return nil, no_script end
    encode_charges = commands.take_all
  end
  local outcomes, server_us, failure = send_together(self, encode_charges, charges, sha, commit, deadline_at, now_us())
  if server_us then
    outcomes, server_us, failure = send_together(self, encode_charges, charges, sha, commit, deadline_at, server_us)
  end
  if server_us then return nil, errors.busy("a window of the calendar ended in between") end
  return outcomes, failure
end

-- Decides charges together by deadline_at.
local function decide_until(self, charges, commit, deadline_at)
  local outcomes, failure
  if self.topology.spans_keys then
    outcomes, failure = self:decide_in_one(charges, commit, deadline_at)
  else
    outcomes, failure = cross_slot.decide(self, charges, commit, deadline_at)
  end
  if not outcomes then return nil, self:explain(failure) end
  return outcomes
end

-- Decides one charge.
function Engine:take(charge, deadline)
  local encoding, no_script = encoding_of(self, charge.bound_limit)
  if not encoding then return nil, self:explain(no_script) end
  local deadline_at = deadline_at_of(self, deadline)
  if not encoding.is_single_take then
    local outcomes, why = decide_until(self, { charge }, COMMIT, deadline_at)
    return outcomes and outcomes[1], why
  end
  local outcome, failure = send_take(self, charge, encoding, deadline_at, encoding.calendar and now_us() or nil)
  if type(outcome) == "table" and outcome[1] == OUTSIDE_CALENDAR then
    outcome, failure = send_take(self, charge, encoding, deadline_at, outcome[2])
  end
  if type(outcome) == "table" and outcome[7] then return outcome end
  return nil, self:explain(failure or not_a_decision())
end

function Engine:decide(charges, commit, deadline)
  if charges[2] or commit ~= COMMIT then
    return decide_until(self, charges, commit, deadline_at_of(self, deadline))
  end
  local outcome, failure = self:take(charges[1], deadline)
  return outcome and { outcome }, failure
end

-- Returns the numbers and the text of the override that decided a charge under this limit; `line` is the eighth element
-- of the outcome.
function Engine:override(limit, line, at_us)
  local algorithm, numbers, text = string.match(line, "^([%w_]+) ([^|]*)|(.*)$")
  local list = {}
  if algorithm == "calendar" then
    list = { unpack(self:numbers(limit, at_us or now_us())) }
    list[1] = numbers
  else
    for number in string.gmatch(numbers, "%S+") do list[#list + 1] = number end
  end
  return list, text
end

-- Refunds a charge; or nil and a failure (not explained yet).
function Engine:refund_until(charge, outcome, deadline_at)
  local bound_limit = charge.bound_limit
  local encoding, no_script = encoding_of(self, bound_limit)
  if not encoding then return nil, no_script end
  local key_text, at_us = escaped(charge.key), now_us()
  for _ = 1, 2 do
    local numbers
    if outcome[8] then
      numbers = self:override(bound_limit.limit, outcome[8], at_us)
    elseif encoding.calendar then
      numbers = self:numbers(bound_limit.limit, at_us)
    end
    local request = { packed = commands.refund(charge, key_text, outcome, numbers) }
    local reply, failure = self:request(request, encoding.refund_sha, key_text, deadline_at)
    if type(reply) ~= "table" then return nil, failure or not_a_decision() end
    if reply[1] ~= OUTSIDE_CALENDAR then return reply end
    at_us = reply[2]
  end
  return nil, errors.busy("a window of the calendar ended in between")
end

function Engine:refund(charge, outcome, deadline)
  local reply, failure = self:refund_until(charge, outcome, deadline_at_of(self, deadline))
  if not reply then return nil, self:explain(failure) end
  return reply
end

function Engine:run_script(script, key, args, tag, deadline)
  local sha = self.scripts[script]
  if not sha then return nil, self:explain(missing_script(script)) end
  local request = { packed = commands.run_script(sha, key, args) }
  local reply, failure = self:request(request, sha, tag or key, deadline_at_of(self, deadline))
  if reply == nil then return nil, self:explain(failure) end
  return reply
end

function Engine:run_script_alone(script, redis_keys, args, tag, deadline)
  local sha = self.scripts[script]
  if not sha then return nil, missing_script(script) end
  local packed, deadline_at = commands.run_script_on(sha, redis_keys, args), deadline_at_of(self, deadline)
  local address = self.single_address or self.topology:node(tag)
  local reply, failure
  if address then
    reply, failure = request_directly(address, packed, deadline_at)
    if reply ~= nil then return reply end
  end
  return redirects.request(self.topology, address, failure, packed, self.texts[sha], tag, deadline_at)
end

local function run_slots(self, charge, deadline, operation, ...)
  local options = charge.bound_limit.options
  local args = { operation, unpack(charge.bound_limit.limit.numbers) }
  for _, arg in ipairs { ... } do args[#args + 1] = arg end
  local redis_keys = { keys.redis_key(charge.bound_limit.head, charge.key, sha256) }
  if options.pausable then
    redis_keys[2] = keys.redis_key(keys.head(self.prefix, "pause", options.rule), charge.key, sha256)
  end
  local script = options.pausable and "slots_paused" or "slots"
  local sha = self.scripts[script]
  if not sha then return nil, self:explain(missing_script(script)) end
  local request = { packed = commands.run_script_on(sha, redis_keys, args) }
  local reply, failure = self:request(request, sha, escaped(charge.key), deadline_at_of(self, deadline))
  if reply == nil then return nil, self:explain(failure) end
  return reply
end

function Engine:acquire(charge, deadline)
  local reply, failure = run_slots(self, charge, deadline, "acquire", "", "0")
  if reply and reply[1] == PAUSED then return paused_outcome(reply, 9) end
  return reply, failure
end

function Engine:renew(charge, fence, deadline)
  local reply, failure = run_slots(self, charge, deadline, "renew", fence)
  if not reply then return nil, failure end
  return reply[1] == 1
end

function Engine:release(charge, fence, deadline)
  local reply, failure = run_slots(self, charge, deadline, "release", fence)
  if not reply then return nil, failure end
  return reply == 1
end

function Engine:command(args, tag, deadline)
  local request = { packed = resp.command(args) }
  local reply, failure = self:request(request, nil, tag or args[2] or "", deadline_at_of(self, deadline))
  if reply == nil then return nil, self:explain(failure) end
  return reply
end

function Engine:shard(key)
  if self.topology.spans_keys then return "" end
  local owner = self.topology:owner(escaped(key))
  return owner and owner.text or ""
end

return M
