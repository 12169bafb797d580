-- Runs inside nginx: a prefetch engine around a real Redis, and calls that ask it as a test says by JSON.

local engines = require "resty.headgate.engines.redis.engine"
local json = require "resty.headgate.rules.bundle_json"
local keys = require "resty.headgate.engines.redis.keys"
local prefetch = require "resty.headgate.engines.prefetch"

local M = {}

local bound_limits, engine = {}, nil

-- In the master: what all workers have.
function M.init(path)
  local file = assert(io.open(path))
  local settings = json.decode(file:read("*a"))
  file:close()
  local redis = assert(engines.open(settings.url, { prefix = "hg" }))
  redis:use({ scripts = settings.scripts, zones = { UTC = { { 0, 0 } } } }, settings.texts)
  for name, rule in pairs(settings.rules) do
    local limit = settings.limits[rule.limit]
    local terms = rule.terms
    terms.rule, terms.shadow = name, terms.aside
    bound_limits[name] = { name = name, limit = limit, options = terms, head = keys.head("hg", limit.algorithm, name) }
  end
  engine = prefetch.around(redis, ngx.shared.headgate)
end

local verbs = {}

local function taken(args, cost)
  local charge = { bound_limit = bound_limits[args.rule], key = args.key, cost = cost or args.cost or 1 }
  local answers, trouble = engine:decide({ charge }, args.commit or 1, args.deadline or 2)
  return charge, answers and answers[1], trouble
end

-- One call; then it may be given back, after a while.
function verbs.take(args)
  local charge, outcome, trouble = taken(args)
  if not outcome then return { trouble = trouble.text } end
  local found = { outcome = outcome, prefetched = outcome[9] ~= nil, stock = outcome[9] and outcome[9].counter }
  outcome[9] = args.refund and outcome[9] or nil
  if args.refund then
    if args.after then ngx.sleep(args.after) end
    found.after = assert(engine:refund(charge, outcome, 2))
    outcome[9], found.after[9] = nil, nil
  end
  return found
end

-- A call that is given back while another worker ends its stock, between the two looks that are taken at its counter.
function verbs.take_and_meet_an_end(args)
  local charge, outcome = taken(args)
  local stock, dict, left = outcome[9], engine.dict, nil
  local between = {}
  function between.get()
    left = engine.returns:close(stock)
    return true -- the flag of who ends it
  end
  engine.dict = setmetatable(between, { __index = function(_, verb)
    return function(_, ...) return dict[verb](dict, ...) end
  end })
  assert(engine:refund(charge, outcome, 2))
  engine.dict = dict
  assert(engine.returns:return_units(stock, left))
  return { left = left }
end

local function note(dict, name, units) dict:incr(name, units, 0) end

local function one_of_flood(args, number, marks)
  local cost = args.costs and args.costs[number % #args.costs + 1] or 1
  local charge, outcome, trouble = taken(args, cost)
  local dict = ngx.shared.totals
  if not outcome then return note(dict, "troubles", 1), ngx.log(ngx.WARN, "no answer: ", trouble.text) end
  if outcome[1] ~= 1 then return note(dict, "refused", 1) end
  if outcome[9] then note(dict, "prefetched", cost) end
  if charge.bound_limit.limit.algorithm == "fixed_window" and outcome[6] >= outcome[7] then note(dict, "late", cost) end
  if args.refund_every and number % args.refund_every == 0 then
    if number % (2 * args.refund_every) == 0 then ngx.sleep(args.refund_after or 0) end
    assert(engine:refund(charge, outcome, 2))
    return note(dict, "returned", cost)
  end
  note(dict, "admitted", cost)
  local mark = string.format("%.0f", outcome[7])
  marks[mark] = (marks[mark] or 0) + cost
end

-- Calls for so long, one after the other, with so much time in between. What came of them is on the dict `totals`, for
-- all workers together.
function verbs.flood(args)
  local marks, number, ends = {}, 0, ngx.now() + args.seconds
  while ngx.now() < ends and not ngx.worker.exiting() and number < (args.most or math.huge) do
    number = number + 1
    one_of_flood(args, number, marks)
    note(ngx.shared.totals, "calls", 1)
    ngx.sleep(args.pause)
  end
  return { pid = ngx.worker.pid(), marks = marks }
end

function verbs.totals()
  local found = {}
  for _, name in ipairs(ngx.shared.totals:get_keys(0)) do found[name] = ngx.shared.totals:get(name) end
  ngx.shared.totals:flush_all()
  return found
end

function verbs.admitted() return { units = ngx.shared.totals:get("admitted") or 0 } end

-- Fills the dict up to its last byte with entries that nothing may throw out.
function verbs.fill()
  local dict, count = ngx.shared.headgate, 0
  for size = 512, 1, -50 do
    while dict:safe_add("c:" .. count, string.rep("x", size)) do count = count + 1 end
  end
  return { count = count }
end

function verbs.filled(args)
  local found = 0
  for number = 0, args.count - 1 do
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
  local args = json.decode(ngx.req.get_body_data())
  ngx.say(encoded(verbs[args.verb](args)))
end

return M
