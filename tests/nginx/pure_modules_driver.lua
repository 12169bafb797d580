-- Runs the gateway's pure twins of Python outside of nginx, so that they can be compared.
--
--   luajit pure_modules_driver.lua LIB
--
-- LIB is nginx/lib. Each line is a question in JSON, and each answers one line of JSON. A limit is an entry of a bundle
-- with its text; one that was met before is the same table again, so what is kept on it stays.
--
--   {"verb": "calendar", "limit", "zones", "times": [us]}                 [[words]], and how many tables they were
--   {"verb": "share" | "even", "limit", "count", "rank"}                  a limit, or false
--   {"verb": "complete", "limit"}                                         the limit, with its quota worked out anew
--   {"verb": "breaker", "steps": [[step, now_us, route, settle_us]]}      [[route or time, breaker]] after each step
--   {"verb": "at_most", "factors": [a, b, c, d]}                          whether a * b <= c * d
--   {"verb": "headers", "form", "verdicts", "wait", "allowed"}            [[name, value]], or {"error"}
--   {"verb": "deciding", "verdicts"}                                      the index of the verdict that decides
--   {"verb": "kept", "one", "other"}                                      whether what is kept of one verdict is used for the other
--   {"verb": "refusal", "refuse", "rule", "violated", "accept"}           {"status", "body", ...}, or {"error"}
--   {"verb": "word", "allowed", "delayed", "asides"}                      the word
--   {"verb": "read", "text"}                                              [what the JSON in it means], or {"error"}
--   {"verb": "quoted", "text"}                                            the text as JSON
--   {"verb": "hot_keys", "batches": [[key]], "max_keys", "number"}        [key, count, ...] of the top keys
--   {"verb": "short_key", "key"}                                          the key, or its short form
--   {"verb": "collected", "calls": [[verdict, second, [key]]]}            [[kind, shape, number, [key, ...]]]
--   {"verb": "collected_bytes", "rounds"}                                 the memory of one rule under ever new keys

package.path = arg[1] .. "/?.lua;" .. package.path

local now_s = 0
package.preload["resty.headgate.clock"] = function() return { now = function() return now_s end } end

local breaker = require "resty.headgate.engines.fallback.breaker"
local calendar = require "resty.headgate.calendar"
local deciding_verdict = require "resty.headgate.http.deciding_verdict"
local exact_compare = require "resty.headgate.exact_compare"
local headers = require "resty.headgate.http.headers"
local hot_keys = require "resty.headgate.telemetry.hot_keys"
local key_estimates = require "resty.headgate.telemetry.key_estimates"
local json = require "resty.headgate.rules.bundle_json"
local limit_quota = require "resty.headgate.limit_quota"
local limit_share = require "resty.headgate.engines.fallback.limit_share"
local limit_req_status = require "resty.headgate.request.limit_req_status"
local refusal_body = require "resty.headgate.http.refusal_body"

local quoted = json.encode

local function written(value)
  if type(value) == "string" then return quoted(value) end
  if type(value) == "number" then return string.format("%.17g", value) end
  if type(value) ~= "table" then return tostring(value or false) end
  local out = {}
  if #value > 0 or next(value) == nil then
    for i, one in ipairs(value) do out[i] = written(one) end
    return "[" .. table.concat(out, ",") .. "]"
  end
  for name, one in pairs(value) do out[#out + 1] = quoted(name) .. ":" .. written(one) end
  return "{" .. table.concat(out, ",") .. "}"
end

-- The answer, or the sentence that came instead.
local function tried(run, ...)
  local fine, answer = pcall(run, ...)
  return fine and answer or { error = answer }
end

local met = {}
local function same(limit)
  met[limit.text] = met[limit.text] or limit
  return met[limit.text]
end

local answers = {}

function answers.read(question)
  return tried(function() return { json.decode(question.text) } end)
end

function answers.quoted(question) return quoted(question.text) end

function answers.calendar(question)
  local found, tables, count = {}, {}, 0
  for i, now_us in ipairs(question.times) do
    local numbers = tried(calendar.numbers, question.limit, question.zones, now_us)
    if not tables[numbers] then tables[numbers], count = true, count + 1 end
    found[i] = numbers
  end
  return { words = found, tables = count }
end

function answers.share(question) return limit_share.share(question.limit, question.count, question.rank) or false end

function answers.even(question) return limit_share.even(question.limit, question.count, question.rank) end

function answers.complete(question)
  local limit = question.limit
  return limit_quota.complete { algorithm = limit.algorithm, numbers = limit.numbers, calendar = limit.calendar }
end

function answers.breaker(question)
  local state, found = breaker.NEW, {}
  for i, step in ipairs(question.steps) do
    local name, now_us, route, settle_us = unpack(step)
    local result = false
    if name == "choose_route" then
      result, state = breaker.choose_route(state, now_us)
    elseif name == "next_probe_us" then
      result = breaker.next_probe_us(state, now_us)
    else
      state = breaker[name](state, route, now_us, settle_us)
    end
    found[i] = { result, { state.phase, state.failures, state.pause_us, state.since_us, state.until_us } }
  end
  return found
end

function answers.at_most(question) return exact_compare.at_most(unpack(question.factors)) end

-- A verdict as the gateway has it.
local function bind_verdict(verdict)
  verdict.limit, verdict.rule, verdict.outcome = same(verdict.limit), { name = verdict.rule or "" }, verdict.outcome
  return verdict
end

-- The fields in the order in which `put` puts them.
local function fields(put, ...)
  local found = {}
  local header = setmetatable({}, { __newindex = function(_, name, value) found[#found + 1] = { name, value } end })
  put(header, ...)
  return found
end

function answers.headers(question)
  for _, verdict in ipairs(question.verdicts) do bind_verdict(verdict) end
  return tried(fields, headers.put, question.form, question.verdicts, question.wait, question.allowed)
end

-- Which of the verdicts decides, counted from 0.
function answers.deciding(question)
  local verdicts = question.verdicts
  for _, verdict in ipairs(verdicts) do bind_verdict(verdict) end
  local deciding = deciding_verdict.most_restrictive(verdicts)
  for i, verdict in ipairs(verdicts) do
    if verdict == deciding then return i - 1 end
  end
end

function answers.kept(question)
  local one, other = bind_verdict(question.one), bind_verdict(question.other)
  fields(headers.put, "draft-11", { one }, nil, true)
  local before = one.limit.policy_items[one.rule.name][0]
  fields(headers.put, "draft-11", { other }, nil, true)
  return other.limit.policy_items[other.rule.name][0] == before
end

function answers.refusal(question)
  local compiled = tried(refusal_body.compile, question.refuse, question.rule)
  return compiled.error and compiled or refusal_body.for_client(compiled, question.violated, question.accept)
end

function answers.word(question) return limit_req_status.status(question.allowed, question.delayed, question.asides) end

function answers.hot_keys(question)
  local hot = hot_keys.new(question.max_keys)
  for _, batch in ipairs(question.batches) do hot:add(batch, #batch) end
  return hot:take_top(question.number)
end

function answers.short_key(question) return hot_keys.short_key(question.key) end

function answers.collected(question)
  local found = {}
  key_estimates.collect(function(_, kind, shape, number, keys) found[#found + 1] = { kind, shape, number, keys } end)
  local lists = key_estimates.new_lists "rule"
  for _, call in ipairs(question.calls) do
    local verdict, second, keys = unpack(call)
    now_s = second
    for _, key in ipairs(keys) do key_estimates.add(lists[verdict], key) end
    key_estimates.flush(second, false)
  end
  key_estimates.flush(now_s, true)
  return found
end

function answers.collected_bytes(question)
  key_estimates.collect(function() end)
  local function kilobytes()
    collectgarbage()
    collectgarbage()
    return collectgarbage "count"
  end
  local before = kilobytes()
  local lists, peak = key_estimates.new_lists "rule", 0
  for round = 1, question.rounds do
    for verdict, list in pairs(lists) do
      for i = 1, 255 do key_estimates.add(list, string.format("%d:%d:%d:", verdict, round, i) .. string.rep("x", 90)) end
    end
    peak = math.max(peak, kilobytes() - before)
  end
  return peak * 1024
end

for line in io.lines() do
  local question = json.decode(line)
  io.write(written(answers[question.verb](question)), "\n")
  io.flush()
end
