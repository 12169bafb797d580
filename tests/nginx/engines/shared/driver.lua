-- What the tests ask of the engine on a shared dict, inside a real nginx: a line of JSON for each question.
--
-- A question names hands by an id; the first that names it says what it is. Answers are texts: a line of numbers for
-- each Outcome (the eighth is "overflow" where it is so), or "trouble KIND TEXT".

local clock = require "resty.headgate.clock"
local json = require "resty.headgate.rules.bundle_json"
local keys = require "resty.headgate.engines.redis.keys"
local lock = require "resty.headgate.engines.shared.lock"
local shared = require "resty.headgate.engines.shared.engine"

local M = { bound_limits = {}, terms = {} }

function M.init(dict) M.engine, M.dict = shared.new { dict = dict }, ngx.shared[dict] end

function M.bind(fields)
  local existing = M.bound_limits[fields.id]
  if existing then return existing end
  local terms = fields.terms
  M.terms[terms.id] = M.terms[terms.id] or { rule = terms.rule, shadow = terms.aside, lockout = terms.lockout }
  fields.limit.text = fields.limit.text or fields.id
  local bound = {
    name = fields.name, limit = fields.limit, options = M.terms[terms.id], on_shared_dict = true,
    head = keys.head("hg", fields.limit.algorithm, fields.name), shadow = terms.aside and "shadow" or nil,
  }
  M.bound_limits[fields.id] = bound
  return bound
end

local function charge(fields) return { bound_limit = M.bind(fields.bound_limit), key = fields.key, cost = fields.cost } end

local function shown(outcome)
  local out = {}
  for i = 1, 7 do out[i] = string.format("%.0f", outcome[i]) end
  if outcome.overflow then out[8] = "overflow" end
  return table.concat(out, " ")
end

local function trouble_text(trouble) return "trouble " .. trouble.kind .. " " .. trouble.text end

local verbs = {}

function verbs.decide(args)
  local charges = {}
  for i, fields in ipairs(args.charges) do charges[i] = charge(fields) end
  local answers, trouble = M.engine:decide(charges, args.commit, args.deadline)
  if not answers then return trouble_text(trouble) end
  for i, outcome in ipairs(answers) do answers[i] = shown(outcome) end
  return table.concat(answers, "\n")
end

local function numbers(text)
  local outcome = {}
  for word in string.gmatch(text, "%S+") do outcome[#outcome + 1] = tonumber(word) end
  outcome.overflow = string.find(text, "overflow", 1, true) ~= nil
  return outcome
end

function verbs.refund(args)
  local outcome, trouble = M.engine:refund(charge(args.charge), numbers(args.outcome), args.deadline)
  return outcome and shown(outcome) or trouble_text(trouble)
end

function verbs.acquire(args)
  local outcome, trouble = M.engine:acquire(charge(args.charge), args.deadline)
  return outcome and shown(outcome) or trouble_text(trouble)
end

function verbs.renew(args)
  local held, trouble = M.engine:renew(charge(args.charge), args.fence, args.deadline)
  return trouble and trouble_text(trouble) or tostring(held)
end

function verbs.release(args)
  local held, trouble = M.engine:release(charge(args.charge), args.fence, args.deadline)
  return trouble and trouble_text(trouble) or tostring(held)
end

function verbs.forget(args)
  local bound = M.bind(args.bound_limit)
  M.dict:delete("c" .. keys.redis_key(bound.head, args.key))
  return "forgotten"
end

function verbs.use(args)
  local some = {}
  for i, fields in ipairs(args.bound_limits) do some[i] = M.bind(fields) end
  M.engine:use { zones = args.zones, bound_limits = { { live = some } } }
  return "used"
end

function verbs.keys()
  local names = {}
  for _, name in ipairs(M.dict:get_keys(0)) do
    if not string.find(name, "^c#") then names[#names + 1] = name end
  end
  table.sort(names)
  return table.concat(names, "\n")
end

-- Takes the lock of a key and keeps it.
function verbs.hold(args)
  lock.take(M.dict, lock.of(args.key))
  return "held"
end

-- Takes the lock of a key and dies with it.
function verbs.die(args)
  lock.take(M.dict, lock.of(args.key))
  require("ffi").cdef "int kill(int pid, int sig);"
  require("ffi").C.kill(ngx.worker.pid(), 9)
end

-- Fills the dict with somebody else's entries, at most so many of each size, until there is no room for one.
function verbs.fill(args)
  local n = 0
  for _, bytes in ipairs { 3000, 1500, 700, 350, 150, 10 } do
    local text, left = string.rep("x", bytes), args.most
    while left > 0 and M.dict:safe_set(args.name .. n, text, args.ttl) do n, left = n + 1, left - 1 end
  end
  return tostring(n)
end

-- Of one entry: its bytes, and the milliseconds that it will live.
function verbs.entry(args)
  return #tostring(M.dict:get(args.name)) .. " " .. string.format("%.0f", M.dict:ttl(args.name) * 1000)
end

function verbs.refuses(args) return shared.reason_unsupported(args.limit) or "fine" end

-- Keeps the worker busy for so many seconds: nginx's cached clock stands still meanwhile.
local function spin(seconds)
  local ends_us = clock.monotonic_us() + seconds * 1000000
  while clock.monotonic_us() < ends_us do end
end

function M.respond()
  ngx.req.read_body()
  ngx.update_time()
  local args = json.decode(ngx.req.get_body_data())
  if args.busy then spin(args.busy) end
  local text = verbs[args.verb](args)
  ngx.header["X-Worker"] = ngx.worker.pid()
  ngx.header["Content-Length"] = #text
  ngx.print(text)
end

-- One charge by query: /hit?key=anna answers 200 or 429.
function M.hit()
  local answers, trouble = M.engine:decide({ { bound_limit = M.only, key = ngx.var.arg_key, cost = 1 } }, 1, 5)
  if not answers then
    ngx.status = 500
    return ngx.print(trouble_text(trouble))
  end
  ngx.status = answers[1][1] == 1 and 200 or 429
  ngx.header["X-Worker"] = ngx.worker.pid()
  ngx.header["Content-Length"] = 0
  ngx.send_headers()
end

-- A charge in a phase that cannot sleep: what came of it stands in the error log.
function M.logged()
  local answers, trouble = M.engine:decide({ { bound_limit = M.only, key = ngx.var.arg_key, cost = 1 } }, 1, 5)
  ngx.log(ngx.NOTICE, "logged: ", answers and shown(answers[1]) or trouble_text(trouble), ";")
end

-- Many charges in one go, over so many keys: /hammer?times=500&keys=1&prefix=a answers how many passed; with &pairs=1, each
-- together with one on a key that all share, which comes first or second.
function M.hammer()
  local times, keys, passed = tonumber(ngx.var.arg_times), tonumber(ngx.var.arg_keys), 0
  local prefix, pairs_too = ngx.var.arg_prefix, ngx.var.arg_pairs
  for i = 1, times do
    local charges = { { bound_limit = M.only, key = prefix .. i % keys, cost = 1 } }
    if pairs_too then table.insert(charges, i % 2 + 1, { bound_limit = M.only, key = prefix .. "other", cost = 1 }) end
    local answers, trouble = M.engine:decide(charges, 1, 5)
    if not answers then error(trouble.text) end
    if answers[1][1] == 1 and (not pairs_too or answers[2][1] == 1) then passed = passed + 1 end
  end
  ngx.header["X-Worker"] = ngx.worker.pid()
  ngx.print(passed)
end

return M
