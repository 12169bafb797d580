-- Writes a decision to nginx: variables for the access log, header fields, a delay, a refusal.
--
-- The response describes one rule: that of the verdict that decides (http/deciding_verdict.lua).
--
-- Laws (tests/nginx/test_gateway.py): refusals have the same header fields as requests that pass; a delayed request
-- blocks no worker; a refusal without a body of its own is nginx's, so that `error_page` works.

local deciding_verdict = require "resty.headgate.http.deciding_verdict"
local decision_record = require "resty.headgate.request.decision_record"
local headers = require "resty.headgate.http.headers"
local limit_req_status = require "resty.headgate.request.limit_req_status"
local memoize = require "resty.headgate.memoize"
local recent_records = require "resty.headgate.telemetry.recent_records"
local refusal_body = require "resty.headgate.http.refusal_body"
local response_headers = require "resty.headgate.ffi.response_headers"
local variables = require "resty.headgate.ffi.variables"

local M = {}

local ngx, max, most_restrictive = ngx, math.max, deciding_verdict.most_restrictive
local read, write = variables.read, variables.write
local NO_CHARGES = {}
local wants_json = memoize(refusal_body.wants_json)

-- Notes that no rule applied. `attributes`, `started_us`: of the record, if one is wanted.
function M.pass(bundle, attributes, started_us)
  if attributes ~= nil then
    decision_record.write_several(bundle, true, NO_CHARGES, NO_CHARGES, nil, nil, attributes, started_us)
  end
  recent_records.add_several(bundle, true, NO_CHARGES, NO_CHARGES, nil, nil)
  write("headgate_status", "PASSED")
  return nil
end

-- Adds the outcome of a shadow or candidate and its name to the list, which may be nil.
local function add_shadow_verdict(shadow_verdicts, outcome, name)
  shadow_verdicts = shadow_verdicts or { names = {} }
  shadow_verdicts[#shadow_verdicts + 1] = outcome
  shadow_verdicts.names[#shadow_verdicts] = name
  return shadow_verdicts
end

-- Returns of several charges the live verdicts, the longest delay, and the shadow verdicts.
local function summarize(charges, outcomes)
  local verdicts, delay_us, shadow_verdicts = {}, 0, nil
  for i = 1, #charges do
    local charge, outcome = charges[i], outcomes[i]
    if outcome and not charge.bound_limit.shadow then
      charge.outcome = outcome
      verdicts[#verdicts + 1] = charge
      delay_us = max(delay_us, outcome[5])
    elseif outcome then
      local name = charge.rule.name
      if charge.bound_limit.shadow == "candidate" then name = name .. "~" end
      shadow_verdicts = add_shadow_verdict(shadow_verdicts, outcome, name)
    end
  end
  return verdicts, delay_us, shadow_verdicts
end

-- Returns the first live match that refuses without asking, which no wait helps; and the shadow verdicts with those of
-- the shadows among them.
local function denied_by(denied, shadow_verdicts)
  local first
  for i = 1, #denied do
    if denied[i].shadow then
      shadow_verdicts = add_shadow_verdict(shadow_verdicts, limit_req_status.DENIED, denied[i].rule.name)
    else
      first = first or denied[i]
    end
  end
  return first, shadow_verdicts
end

-- Returns the names of the rules that refuse.
local function violated_rules(charges, outcomes, denied)
  local names, is_listed = {}, {}
  local function add(name)
    if not is_listed[name] then is_listed[name], names[#names + 1] = true, name end
  end
  for i, charge in ipairs(charges) do
    local outcome = outcomes[i]
    if outcome and outcome[1] ~= 1 and not charge.bound_limit.shadow then add(charge.rule.name) end
  end
  for _, match in ipairs(denied or {}) do
    if not match.shadow then add(match.rule.name) end
  end
  return names
end

-- Writes the refusal, and returns the status that the request ends with. Without charges, the rule was the only one.
function M.refuse(rule, charges, outcomes, denied)
  local refusal = rule.refusal
  local accept = not refusal.body and read "http_accept"
  if accept and wants_json(accept) then
    local violated = charges and violated_rules(charges, outcomes, denied) or { rule.name }
    refusal = refusal_body.for_client(refusal, violated, accept)
  end
  if refusal.location then response_headers["Location"] = refusal.location end
  if not refusal.body then return refusal.status end
  ngx.status = refusal.status
  response_headers["Content-Type"] = refusal.type
  response_headers["Content-Length"] = #refusal.body
  if read "request_method" ~= "HEAD" then ngx.print(refusal.body) end
  return ngx.HTTP_OK
end

-- Writes the variables for other nginx modules. `rule` is the one that the response describes, if any.
function M.write_variables(allowed, rule, remaining, delay_us, shadow_verdicts)
  write("headgate_status", limit_req_status.status(allowed, delay_us > 0, shadow_verdicts))
  local dry_run = shadow_verdicts and limit_req_status.dry_run(shadow_verdicts, shadow_verdicts.names)
  if dry_run then write("headgate_dry_run", dry_run) end
  if not rule then return end
  write("headgate_rule", rule.name)
  write("headgate_remaining", remaining)
end

-- Returns a delay in seconds; nil if there is none.
function M.seconds(delay_us) return delay_us > 0 and delay_us / 1000000 or nil end

-- Writes the decision about several charges, and its record if one is wanted. Returns the status that the request ends
-- with, if it ends here, and the seconds that it waits, if it does.
function M.several(bundle, allowed, charges, outcomes, denied, attributes, started_us)
  local rule, remaining, wait_us
  local verdicts, delay_us, shadow_verdicts = summarize(charges, outcomes)
  local deciding = most_restrictive(verdicts)
  if deciding then rule, remaining, wait_us = deciding.rule, deciding.outcome[2], deciding.outcome[3] end
  if denied then
    local first
    first, shadow_verdicts = denied_by(denied, shadow_verdicts)
    if first then rule, remaining, wait_us = first.rule, 0, nil end
  end
  M.write_variables(allowed, rule, remaining, allowed and delay_us or 0, shadow_verdicts)
  if attributes ~= nil then
    decision_record.write_several(bundle, allowed, charges, outcomes, denied, rule, attributes, started_us)
  end
  recent_records.add_several(bundle, allowed, charges, outcomes, denied, rule)
  if rule then headers.put(response_headers, bundle.headers, verdicts, wait_us, allowed) end
  if not allowed then return M.refuse(rule, charges, outcomes, denied), nil end
  return nil, M.seconds(delay_us)
end

return M
