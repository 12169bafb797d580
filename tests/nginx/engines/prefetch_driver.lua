-- Runs inside nginx: a prefetch engine around a real Redis, and calls that ask it as a test says by JSON.

local engines = require "resty.headgate.engines.redis.engine"
local json = require "resty.headgate.rules.bundle_json"
local keys = require "resty.headgate.engines.redis.keys"
local prefetch = require "resty.headgate.engines.prefetch"

local M = {}

local hands, engine = {}, nil

-- In the master: what all workers have.
function M.init(path)
  local file = assert(io.open(path))
  local said = json.decode(file:read("*a"))
  file:close()
  local redis = assert(engines.open(said.url, { prefix = "hg" }))
  redis:use({ scripts = said.scripts, zones = { UTC = { { 0, 0 } } } }, said.texts)
  for name, rule in pairs(said.rules) do
    local limit = said.limits[rule.limit]
    local terms = rule.terms
    terms.rule, terms.shadow = name, terms.aside
    hands[name] = { name = name, limit = limit, options = terms, head = keys.head("hg", limit.algorithm, name) }
  end
  engine = prefetch.around(redis, ngx.shared.headgate)
end

local verbs = {}

local function taken(said, cost)
  local charge = { bound_limit = hands[said.rule], key = said.key, cost = cost or said.cost or 1 }
  local answers, trouble = engine:decide({ charge }, said.commit or 1, said.deadline or 2)
  return charge, answers and answers[1], trouble
end

-- One call; then it may be given back, after a while.
function verbs.take(said)
  local charge, facts, trouble = taken(said)
  if not facts then return { trouble = trouble.text } end
  local found = { facts = facts, prefetched = facts[9] ~= nil, stock = facts[9] and facts[9].counter }
  facts[9] = said.refund and facts[9] or nil
  if said.refund then
    if said.after then ngx.sleep(said.after) end
    found.after = assert(engine:refund(charge, facts, 2))
    facts[9], found.after[9] = nil, nil
  end
  return found
end

-- A call that is given back while another worker ends its stock, between the two looks that are taken at its counter.
function verbs.take_and_meet_an_end(said)
  local charge, facts = taken(said)
  local stock, dict, left = facts[9], engine.dict, nil
  local between = {}
  function between.get()
    left = engine.returns:close(stock)
    return true -- the flag of who ends it
  end
  engine.dict = setmetatable(between, { __index = function(_, verb)
    return function(_, ...) return dict[verb](dict, ...) end
  end })
  assert(engine:refund(charge, facts, 2))
  engine.dict = dict
  assert(engine.returns:return_units(stock, left))
  return { left = left }
end

local function note(dict, name, units) dict:incr(name, units, 0) end

local function one_of_flood(said, number, marks)
  local cost = said.costs and said.costs[number % #said.costs + 1] or 1
  local charge, facts, trouble = taken(said, cost)
  local dict = ngx.shared.told
  if not facts then return note(dict, "troubles", 1), ngx.log(ngx.WARN, "no answer: ", trouble.text) end
  if facts[1] ~= 1 then return note(dict, "refused", 1) end
  if facts[9] then note(dict, "prefetched", cost) end
  if charge.bound_limit.limit.algorithm == "fixed_window" and facts[6] >= facts[7] then note(dict, "late", cost) end
  if said.refund_every and number % said.refund_every == 0 then
    if number % (2 * said.refund_every) == 0 then ngx.sleep(said.refund_after or 0) end
    assert(engine:refund(charge, facts, 2))
    return note(dict, "returned", cost)
  end
  note(dict, "admitted", cost)
  local mark = string.format("%.0f", facts[7])
  marks[mark] = (marks[mark] or 0) + cost
end

-- Calls for so long, one after the other, with so much time in between. What came of them is on the dict `told`, for
-- all workers together.
function verbs.flood(said)
  local marks, number, ends = {}, 0, ngx.now() + said.seconds
  while ngx.now() < ends and not ngx.worker.exiting() and number < (said.most or math.huge) do
    number = number + 1
    one_of_flood(said, number, marks)
    note(ngx.shared.told, "calls", 1)
    ngx.sleep(said.pause)
  end
  return { pid = ngx.worker.pid(), marks = marks }
end

function verbs.told()
  local found = {}
  for _, name in ipairs(ngx.shared.told:get_keys(0)) do found[name] = ngx.shared.told:get(name) end
  ngx.shared.told:flush_all()
  return found
end

function verbs.admitted() return { units = ngx.shared.told:get("admitted") or 0 } end

-- Fills the dict up to its last byte with entries that nothing may throw out.
function verbs.fill()
  local dict, count = ngx.shared.headgate, 0
  for size = 512, 1, -50 do
    while dict:safe_add("c:" .. count, string.rep("x", size)) do count = count + 1 end
  end
  return { count = count }
end

function verbs.filled(said)
  local found = 0
  for number = 0, said.count - 1 do
    if ngx.shared.headgate:get("c:" .. number) then found = found + 1 end
  end
  return { count = found }
end

local function encoded(value)
  if type(value) == "number" then return string.format("%.17g", value) end
  if type(value) == "string" then return '"' .. string.gsub(value, '[%c"\\]', "?") .. '"' end
  if type(value) ~= "table" then return tostring(value) end
  local pieces = {}
  if value[1] ~= nil then
    for i = 1, #value do pieces[i] = encoded(value[i]) end
    return "[" .. table.concat(pieces, ",") .. "]"
  end
  for name, each in pairs(value) do pieces[#pieces + 1] = encoded(name) .. ":" .. encoded(each) end
  return "{" .. table.concat(pieces, ",") .. "}"
end

function M.serve()
  ngx.req.read_body()
  local said = json.decode(ngx.req.get_body_data())
  ngx.say(encoded(verbs[said.verb](said)))
end

return M
