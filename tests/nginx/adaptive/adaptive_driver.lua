-- Runs the adaptive algorithms outside of nginx, so that they can be compared.
--
--   luajit adaptive_driver.lua LIB
--
-- LIB is nginx/lib. Each line is a question in JSON, and each answers one line of JSON:
--
--   {"verb": "windows", "algorithm", "settings", "windows": [...]}    [[fields of the state ..., reason]] after each
--   {"verb": "window_of", "algorithm", "settings"}                    [length, samples, settle]
--   {"verb": "outcome", "statuses", "times", "is_complete"}           [outcome or false, nanoseconds]
--   {"verb": "history", "algorithm", "settings", "classes", "events"} [[answer, limit, learned, in_flight, reason]]
--
-- settings: {low, high, target_s, quantile}. An event is [verb, now_ns, ...].

package.path = arg[1] .. "/?.lua;" .. package.path

local json = require "resty.headgate.rules.bundle_json"
-- What the module of requests needs of nginx.
ngx = {}
package.preload["resty.headgate.clock"] = function() return {} end
package.preload["resty.headgate.ffi.variables"] = function() return {} end
package.preload["resty.headgate.request.redirected_request"] = function() return {} end

local calls_in_flight = require "resty.headgate.request.calls_in_flight"
local concurrency_gate = require "resty.headgate.adaptive.concurrency_gate"
local rate_gate = require "resty.headgate.adaptive.rate_gate"
local reasons = require "resty.headgate.adaptive.reasons"
local rejection_ratio = require "resty.headgate.adaptive.rejection_ratio"

local function written(value)
  if type(value) == "string" then return json.encode(value) end
  if type(value) == "number" then return string.format("%.17g", value) end
  if type(value) ~= "table" then return tostring(value or false) end
  local out = {}
  for i, one in ipairs(value) do out[i] = written(one) end
  return "[" .. table.concat(out, ",") .. "]"
end

local function algorithm_of(question)
  local algorithm = require("resty.headgate.adaptive." .. question.algorithm)
  local given = question.settings
  return algorithm, algorithm.settings(given.low, given.high, given.target_s, given.quantile)
end

local answers = {}

function answers.windows(question)
  local algorithm, settings = algorithm_of(question)
  local state, found = {}, {}
  algorithm.start(settings, state)
  for i, window in ipairs(question.windows) do
    if window.quantile_ns == -1 then window.quantile_ns = math.huge end
    local reason = algorithm.update(settings, state, window)
    local row = {}
    for number, name in ipairs(algorithm.FIELDS) do row[number] = state[name] end
    row[#row + 1] = reason
    found[i] = row
  end
  return found
end

function answers.window_of(question)
  local algorithm, settings = algorithm_of(question)
  return { algorithm.window_of(settings, {}) }
end

function answers.outcome(question)
  local outcome, upstream_ns = calls_in_flight.outcome(question.statuses, question.times, question.is_complete)
  return { outcome or false, upstream_ns or 0 }
end

local function new_responses()
  local list = {}
  return {
    add = function(_, value) list[#list + 1] = value return true end,
    clear = function() list = {} end,
    sorted = function() table.sort(list) return list end,
  }
end

local function new_gate()
  local gate = {}
  for _, name in ipairs(concurrency_gate.FIELDS) do gate[name] = 0 end
  return gate
end

local function new_ratio(classes)
  local state = { counts = {}, recent = {} }
  for _, name in ipairs(rejection_ratio.FIELDS) do state[name] = 0 end
  for class = 0, classes - 1 do state.counts[class] = 0 end
  state.classes = classes
  return state
end

local verbs = {}

function verbs.enter(run, now_ns, priority, chance)
  if run.ratio then return rejection_ratio.enter(run.ratio, run.module, run.gate, now_ns, priority, chance) end
  return run.module.try_enter(run.gate, now_ns)
end

function verbs.above(run) return run.module.enter_above(run.gate) end

function verbs.cancel(run) run.module.cancel(run.gate) return 0 end

function verbs.leave(run, now_ns, entered, response_ns, outcome)
  run.module.leave(run.gate, run.algorithm, run.settings, run.responses, entered, response_ns, now_ns, outcome)
  return run.module.room(run.gate, now_ns)
end

function verbs.change(run, now_ns, low, high)
  run.settings = run.algorithm.settings(low, high, run.settings.target_s, run.settings.quantile)
  run.module.change(run.gate, run.algorithm, run.settings, run.responses, now_ns, true)
  return 0
end

function answers.history(question)
  local algorithm, settings = algorithm_of(question)
  local run = {
    algorithm = algorithm, settings = settings, gate = new_gate(), responses = new_responses(),
    module = question.algorithm == "target_rate" and rate_gate or concurrency_gate,
    ratio = question.classes > 0 and new_ratio(question.classes) or nil,
  }
  run.module.start(run.gate, algorithm, settings, run.responses, question.start_ns)
  local found = {}
  for i, event in ipairs(question.events) do
    local answer = verbs[event[1]](run, unpack(event, 2))
    local gate = run.gate
    found[i] = {
      answer, gate.limit, gate.learned, gate.in_flight, reasons.TEXTS[gate.reason], run.ratio and run.ratio.ratio or 0,
    }
  end
  return found
end

for line in io.lines() do
  local question = json.decode(line)
  io.write(written(answers[question.verb](question)), "\n")
  io.flush()
end
