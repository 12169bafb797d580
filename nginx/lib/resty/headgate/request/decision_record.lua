-- Makes the record of a decision: the fields that headgate/telemetry/decision_record.py writes, without the closing
-- brace, so that a log_format can add the status and the duration. It is written into $headgate_decision for that;
-- `headgate nginx conf --decision-log` prints the format. A sample goes to Redis (telemetry/recent_records.lua).
--
-- The variable is not written unless the configuration declares and uses it. The attributes are written down before
-- the decision: the table that holds them serves the next request while this one waits for Redis. Of a sample, a
-- request that was not drawn has a line only if a rule refuses it; then its attributes are read again.
--
-- Laws (tests/nginx/test_decision_log.py): every request that a rulebook decided has one line, or was left out by
-- sampling; all refusals are kept, also those of a shadow or a candidate; a replay of the lines under the same rules
-- gives the same answers.

local cjson = require "cjson"
local clock = require "resty.headgate.clock"
local key_hashing = require "resty.headgate.request.key_hashing"
local memoize = require "resty.headgate.memoize"
local request_attributes = require "resty.headgate.request.request_attributes"
local variables = require "resty.headgate.ffi.variables"

local M = {}

local concat, format, random = table.concat, string.format, math.random
local write, is_writable = variables.write, variables.is_writable
local VARIABLE = "headgate_decision"

local json_text = memoize(function(text) return cjson.encode(text) end)

local lines = 0 -- that this worker wrote into the variable
local process -- the name of this nginx: all its workers share their counts
local sample, sample_text = 1, "1" -- the part of the requests that have a line in the log
local hasher = nil -- of keys, if they are to be hashed
local NOT_DRAWN = false -- in place of attributes

-- Sets which part of the requests the log has, and the salt that keys are hashed with: nil if they are readable.
function M.configure(part, salt)
  sample, sample_text = part, format("%.14g", part)
  hasher = salt and key_hashing.new(salt) or nil
end

local function process_name()
  local ok, ngx_process = pcall(require, "ngx.process")
  local pid = ok and ngx_process.get_master_pid and ngx_process.get_master_pid() or ngx.worker.pid()
  return json_text((variables.read "hostname" or "nginx") .. ":" .. pid)
end

-- Returns the attributes that rules use, as JSON.
function M.attributes_text(bundle, values)
  local names, fields = bundle.used_attributes, {}
  for i = 1, #names do
    local value = values[names[i]]
    if hasher and value ~= "" then value = hasher:attribute(bundle, names[i], values) end
    if value ~= "" then fields[#fields + 1] = json_text(names[i]) .. ":" .. json_text(value) end
  end
  return "{" .. concat(fields, ",") .. "}"
end

-- Returns the attributes as JSON, and when the request came; nil if no record is to be written into the variable, false
-- if only that of a refusal is.
function M.begin(bundle, values)
  if not is_writable(VARIABLE) then return nil, nil end
  if sample < 1 and random() >= sample then return NOT_DRAWN, nil end
  local started_us = clock.monotonic_us()
  return M.attributes_text(bundle, values), started_us
end

local function key_text(key) return json_text(hasher and hasher.key(key) or key) end

local function text_or_null(text) return text and json_text(text) or "null" end

local function override_field(charge, outcome)
  local bound_limit = charge.bound_limit
  if not bound_limit.options.overrides or outcome.degraded then return "" end
  return ',"override":' .. (outcome[8] and json_text(charge.limit.text) or "null")
end

local function verdict(charge, outcome)
  local retry_us = outcome[3]
  return '{"rule":' .. json_text(charge.rule.name) .. ',"key":' .. key_text(charge.key)
    .. ',"limit":' .. text_or_null(charge.limit.text)
    .. format(',"cost":%d,"allowed":%s,"remaining":%d,"retry_after_us":', charge.cost,
      outcome[1] == 1 and "true" or "false", outcome[2])
    .. (retry_us >= 0 and format("%d", retry_us) or "null") .. format(',"delay_us":%d', outcome[5])
    .. override_field(charge, outcome) .. "}"
end

local function denied_verdict(match)
  return '{"rule":' .. json_text(match.rule.name) .. ',"key":' .. key_text(match.key or "")
    .. format(',"limit":null,"cost":%d,"allowed":false,"remaining":0,"retry_after_us":null,"delay_us":0}',
      match.cost or 1)
end

-- `seq`: the number of the record. `started_us`: nil if the latency is not known. `marks`: more fields, that a fallback
-- or load shedding decided. `part`: of the requests that have such a record, as text.
local function record_text(
  bundle, at_us, seq, attributes, started_us, allowed, rule, marks, live, shadow, candidate, part
)
  process = process or process_name()
  if hasher then marks = marks .. ',"hashed":' .. hasher:hashed_names(bundle) end
  return format('{"at_us":%d,"seq":%d,"process":', at_us, seq) .. process .. ',"attributes":' .. attributes
    .. ',"cost":null,"allowed":' .. (allowed and "true" or "false")
    .. ',"rule":' .. (rule and json_text(rule.name) or "null") .. ',"version":' .. bundle.version
    .. ',"sample":' .. (part or "1")
    .. ',"latency_us":' .. (started_us and format("%d", clock.monotonic_us() - started_us) or "null")
    .. marks
    .. ',"verdicts":[' .. live .. '],"shadow":[' .. shadow .. '],"candidate":[' .. candidate .. "]"
end

local function marks_of(degraded, shed)
  return (degraded and ',"degraded":true' or "") .. (shed and ',"shed":true' or "")
end

-- Returns the record of a request that met one live rule with one limit, and when it was decided.
function M.single_text(bundle, charge, outcome, seq, attributes, started_us, part)
  local at_us = outcome[6] > 0 and outcome[6] or clock.wall_us()
  return record_text(bundle, at_us, seq, attributes, started_us, outcome[1] == 1, charge.rule,
    marks_of(outcome.degraded, outcome.shed), verdict(charge, outcome), "", "", part), at_us
end

-- Returns the record of any request, and when it was decided. `rule`: the one that decided; nil if none applied.
function M.several_text(bundle, allowed, charges, outcomes, denied, rule, seq, attributes, started_us, part)
  local lists = { live = {}, shadow = {}, candidate = {} }
  local at_us, degraded, shed = 0, false, false
  for i = 1, #charges do
    local charge, outcome = charges[i], outcomes[i]
    if outcome then
      local list = lists[charge.bound_limit.shadow or "live"]
      list[#list + 1] = verdict(charge, outcome)
      if at_us == 0 then at_us = outcome[6] end
      degraded, shed = degraded or outcome.degraded, shed or outcome.shed
    end
  end
  for _, match in ipairs(denied or {}) do
    local list = lists[match.shadow and "shadow" or "live"]
    list[#list + 1] = denied_verdict(match)
  end
  if at_us <= 0 then at_us = clock.wall_us() end
  return record_text(bundle, at_us, seq, attributes, started_us, allowed, rule, marks_of(degraded, shed),
    concat(lists.live, ","), concat(lists.shadow, ","), concat(lists.candidate, ","), part), at_us
end

-- Returns whether a verdict refused the request, also one of a shadow or a candidate.
function M.has_refusal(charges, outcomes, denied)
  for i = 1, #charges do
    local outcome = outcomes[i]
    if outcome and outcome[1] ~= 1 then return true end
  end
  return denied ~= nil and denied[1] ~= nil
end

-- Writes the record of a request that met one live rule with one limit into the variable, if it is to have one.
-- `attributes`, `started_us`: what `begin` returned.
function M.write_single(bundle, charge, outcome, attributes, started_us)
  if attributes == NOT_DRAWN then
    if outcome[1] == 1 then return end
    attributes = M.attributes_text(bundle, request_attributes.request())
  end
  lines = lines + 1
  write(VARIABLE, (M.single_text(bundle, charge, outcome, lines, attributes, started_us, sample_text)))
end

-- Writes the record of any request into the variable, if it is to have one.
function M.write_several(bundle, allowed, charges, outcomes, denied, rule, attributes, started_us)
  if attributes == NOT_DRAWN then
    if not M.has_refusal(charges, outcomes, denied) then return end
    attributes = M.attributes_text(bundle, request_attributes.request())
  end
  lines = lines + 1
  local text =
    M.several_text(bundle, allowed, charges, outcomes, denied, rule, lines, attributes, started_us, sample_text)
  write(VARIABLE, text)
end

return M
