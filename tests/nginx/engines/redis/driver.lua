-- Runs inside nginx: does to our modules what a test asks by JSON, and answers by JSON. Texts that may be any bytes
-- cross as hex.

local batching = require "resty.headgate.engines.redis.batching"
local cluster = require "resty.headgate.engines.redis.cluster"
local commands = require "resty.headgate.engines.redis.commands"
local connection = require "resty.headgate.engines.redis.connection"
local engines = require "resty.headgate.engines.redis.engine"
local errors = require "resty.headgate.engines.redis.errors"
local json = require "resty.headgate.rules.bundle_json"
local keys = require "resty.headgate.engines.redis.keys"
local resp = require "resty.headgate.engines.redis.resp"
local server_address = require "resty.headgate.engines.redis.server_address"
local urls = require "resty.headgate.engines.redis.url"

local M = {}

local function quoted(text)
  return '"' .. string.gsub(text, '[%c"\\]', function(character)
    return string.format("\\u%04x", string.byte(character))
  end) .. '"'
end

local function encoded(value)
  local kind = type(value)
  if kind == "number" then return string.format("%.17g", value) end
  if kind == "string" then return quoted(value) end
  if kind ~= "table" then return kind == "nil" and "null" or tostring(value) end
  local pieces = {}
  if value[1] ~= nil or next(value) == nil then
    for i = 1, #value do pieces[i] = encoded(value[i]) end
    local named = {}
    for name, each in pairs(value) do
      if type(name) == "string" then named[#named + 1] = quoted(name) .. ":" .. encoded(each) end
    end
    if named[1] then
      return '{"list":[' .. table.concat(pieces, ",") .. "]," .. table.concat(named, ",") .. "}"
    end
    return "[" .. table.concat(pieces, ",") .. "]"
  end
  for name, each in pairs(value) do
    if type(each) ~= "userdata" then pieces[#pieces + 1] = quoted(tostring(name)) .. ":" .. encoded(each) end
  end
  return "{" .. table.concat(pieces, ",") .. "}"
end

local function bytes(hex)
  return (string.gsub(hex, "%x%x", function(digits) return string.char(tonumber(digits, 16)) end))
end

local function hex(text)
  return (string.gsub(text, ".", function(character) return string.format("%02x", string.byte(character)) end))
end

local rooms = {}
local verbs = {}

function verbs.open(args)
  local engine, why = engines.open(args.url, { prefix = args.prefix })
  if not engine then return nil, why end
  engine:use({ scripts = args.scripts, zones = args.zones }, args.texts)
  local bound_limits = {}
  for _, options in pairs(args.terms) do options.shadow = options.is_shadow end
  for i, one in ipairs(args.bound_limits) do
    local limit = args.limits[one.limit]
    bound_limits[i] = {
      name = one.name, limit = limit, options = args.terms[one.terms], shadow = args.terms[one.terms].is_shadow and "shadow",
      head = keys.head(args.prefix, limit.algorithm, one.name),
    }
  end
  rooms[args.id] = { engine = engine, bound_limits = bound_limits }
  return true
end

local function charges_of(room, list)
  local charges = {}
  for i, one in ipairs(list) do charges[i] = { bound_limit = room.bound_limits[one[1]], key = one[2], cost = one[3] } end
  return charges
end

function verbs.decide(args)
  local room = rooms[args.id]
  local answers, word = room.engine:decide(charges_of(room, args.charges), args.commit, args.deadline)
  if args.word and answers then return { answers = answers, word = word or "asked" } end
  return answers, word
end

-- Questions at once, from as many threads of one request.
function verbs.decide_each(args)
  local room, threads, found = rooms[args.id], {}, {}
  for i, list in ipairs(args.asks) do
    threads[i] = ngx.thread.spawn(function()
      return room.engine:decide(charges_of(room, list), args.commit, args.deadline)
    end)
  end
  for i, thread in ipairs(threads) do
    local _, answers, failure = ngx.thread.wait(thread)
    found[i] = { answers = answers, trouble = failure }
  end
  return found
end

-- The same question so many times.
function verbs.decide_many(args)
  args.asks = {}
  for i = 1, args.times do args.asks[i] = args.charges end
  return verbs.decide_each(args)
end

-- The second rule counts where the first one does, as where the limit of a rule has changed.
function verbs.one_count(args)
  local bound_limits = rooms[args.id].bound_limits
  bound_limits[2].head = bound_limits[1].head
  return true
end

function verbs.refund(args)
  local room = rooms[args.id]
  return room.engine:refund(charges_of(room, { args.charge })[1], args.outcome, args.deadline)
end

function verbs.acquire(args)
  local room = rooms[args.id]
  return room.engine:acquire(charges_of(room, { args.charge })[1], args.deadline)
end

function verbs.renew(args)
  local room = rooms[args.id]
  return room.engine:renew(charges_of(room, { args.charge })[1], args.fence, args.deadline)
end

function verbs.release(args)
  local room = rooms[args.id]
  return room.engine:release(charges_of(room, { args.charge })[1], args.fence, args.deadline)
end

function verbs.command(args) return rooms[args.id].engine:command(args.words, args.tag, args.deadline) end

function verbs.forget_scripts(args)
  rooms[args.id].engine.texts = {}
  return true
end

function verbs.drop(args)
  local engine = rooms[args.id].engine
  engine.scripts[args.script], engine.take_all_shas = nil, {}
  return true
end

function verbs.shard(args) return rooms[args.id].engine:shard(args.key) end

-- The bytes of several charges in one question.
function verbs.together(args)
  local room = rooms[args.id]
  local charges = charges_of(room, args.charges)
  for _, charge in ipairs(charges) do commands.bind(charge.bound_limit, room.engine.scripts, room.engine.prefix) end
  return hex(commands[args.alike and "take_together" or "take_all"](charges, args.sha, args.commit))
end

function verbs.take(args)
  local room = rooms[args.id]
  local charge = charges_of(room, { args.charge })[1]
  local bound = commands.bind(charge.bound_limit, room.engine.scripts, room.engine.prefix)
  return hex(commands.take(bound, commands.escaped(charge.key), charge.cost))
end

function verbs.packed_refund(args)
  local room = rooms[args.id]
  local charge = charges_of(room, { args.charge })[1]
  commands.bind(charge.bound_limit, room.engine.scripts, room.engine.prefix)
  return hex(commands.refund(charge, commands.escaped(charge.key), args.outcome))
end

local function spelled(value)
  if type(value) == "string" then return { text = hex(value) } end
  if type(value) ~= "table" then return value end
  if value.error then return { error = hex(value.error) } end
  local found = {}
  for i, one in ipairs(value) do found[i] = spelled(one) end
  return found
end

function verbs.read(args)
  local value, beyond = resp.read(bytes(args.text), args.at or 1)
  if value == nil then return { missing = beyond or false } end
  return { value = spelled(value), beyond = beyond }
end

function verbs.pack(args)
  local words = {}
  for i, word in ipairs(args.words) do words[i] = type(word) == "string" and bytes(word) or word end
  return hex(resp.command(words))
end

function verbs.with_text(args) return hex(resp.with_text(bytes(args.packed), bytes(args.text))) end

function verbs.slot(args) return cluster.slot(commands.escaped(bytes(args.key))) end

function verbs.url(args) return urls.parse(args.url) end

function verbs.parse_error(args) return errors.from_reply(args.text) end

function verbs.explain_error(args) return errors.explain("h:1", "hg", errors.from_reply(args.text), args.instead) end

local function at_port(port, host)
  rooms[port] = rooms[port] or server_address.new { host = host or "127.0.0.1", port = port }
  return rooms[port]
end

-- One line, without an engine.
function verbs.line(args) return connection.request(at_port(args.port), bytes(args.packed), ngx.now() + args.seconds, args.count) end

local function look_away(seconds)
  ngx.update_time()
  local until_when = ngx.now() + seconds
  while ngx.now() < until_when do ngx.update_time() end
end

-- One question that may travel with others.
function verbs.convoy(args)
  return batching.request(at_port(args.port), { packed = bytes(args.packed) }, ngx.now() + args.seconds)
end

-- Such questions from threads of one request: each begins `after` so many seconds, and when it was answered nginx sees
-- nothing for `blind` seconds. Those that are to be `broken` off are so, all at once, after `broken_after`.
function verbs.convoys(args)
  local at, threads, found, broken = at_port(args.port, args.host), {}, {}, {}
  for i, one in ipairs(args.asks) do
    found[i] = { took = -1 }
    threads[i] = ngx.thread.spawn(function()
      if one.after then ngx.sleep(one.after) end
      local began = ngx.now()
      local answer, failure = batching.request(at, { packed = bytes(one.packed) }, began + one.seconds)
      if failure then failure.had_by = (failure.had_by or 0) + 1 end
      found[i] = { answer = answer, trouble = failure, took = ngx.now() - began }
      if one.blind then look_away(one.blind) end
    end)
  end
  if args.broken then ngx.sleep(args.broken_after) end
  for _, i in ipairs(args.broken or {}) do
    ngx.thread.kill(threads[i])
    broken[i] = true
  end
  for i, thread in ipairs(threads) do
    if not broken[i] then ngx.thread.wait(thread) end
  end
  return found
end

-- How many drive, and how many are known to wait.
function verbs.convoy_now(args)
  local batcher, drive = at_port(args.port).batcher, 0
  for _, ends in ipairs(batcher.busy_until) do drive = drive + (ends > ngx.now() and 1 or 0) end
  return { drive = drive, wait = #batcher.waiting }
end

-- A question, then so many seconds in which nginx sees nothing of what happens, then another question.
function verbs.blindly(args)
  local engine, charges = rooms[args.id].engine, charges_of(rooms[args.id], args.charges)
  local first, failure = engine:decide(charges, 1)
  if not first then return nil, failure end
  look_away(args.seconds)
  return engine:decide(charges, 1)
end

function M.serve()
  ngx.req.read_body()
  local args = json.decode(ngx.req.get_body_data())
  local answer, failure = verbs[args.verb](args)
  ngx.say(encoded { answer = answer == nil and "nil" or answer, none = answer == nil, trouble = failure or false })
end

return M
