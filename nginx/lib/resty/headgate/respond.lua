-- Writes a decision to nginx: variables for the access log, header fields, a delay, a refusal.
--
-- The response describes one rule: of the rules that refuse, the one that refuses longest (of equals the first in the
-- rulebook); of a request that passed, the one that is nearest to its limit.
--
-- Laws (tests/nginx/test_gateway.py): refusals have the same header fields as requests that pass; a delayed request
-- blocks no worker; a refusal without a body of its own is nginx's, so that `error_page` works.

local headers = require "resty.headgate.http.headers"
local log_status = require "resty.headgate.request.log_status"
local memoize = require "resty.headgate.memoize"
local refusal_body = require "resty.headgate.http.refusal_body"
local response_headers = require "resty.headgate.ffi.response_headers"
local variables = require "resty.headgate.ffi.variables"

local M = {}

local ngx, huge, max = ngx, math.huge, math.max
local read, write = variables.read, variables.write
local wants_json = memoize(refusal_body.wants_json)

-- Notes that no rule applied.
function M.pass()
  write("headgate_status", "PASSED")
  return nil
end

-- Ranks live charges, to choose the one that the response describes: of those that refuse the one that refuses longest,
-- of those that pass the one with the smallest share left. Below zero: not described, because another charge refused.
local function prominence(allowed, outcome, limit)
  if allowed then return limit.fresh / (limit.fresh + outcome[2]) end
  if outcome[1] == 1 then return -1 end
  return outcome[3] < 0 and huge or outcome[3]
end

-- Adds the outcome of a shadow or candidate and its name to the list, which may be nil.
local function add_shadow_verdict(shadow_verdicts, outcome, name)
  shadow_verdicts = shadow_verdicts or { names = {} }
  shadow_verdicts[#shadow_verdicts + 1] = outcome
  shadow_verdicts.names[#shadow_verdicts] = name
  return shadow_verdicts
end

-- Returns of several charges the live verdicts, the one that the response describes, the longest delay, and the shadow
-- verdicts.
local function summarize(allowed, charges, outcomes)
  local verdicts, described, highest, delay_us, shadow_verdicts = {}, nil, -1, 0, nil
  for i = 1, #charges do
    local charge, outcome = charges[i], outcomes[i]
    if outcome and not charge.bound_limit.shadow then
      charge.outcome = outcome
      verdicts[#verdicts + 1] = charge
      delay_us = max(delay_us, outcome[5])
      local weight = prominence(allowed, outcome, charge.limit)
      if weight > highest then described, highest = charge, weight end
    elseif outcome then
      local name = charge.rule.name
      if charge.bound_limit.shadow == "candidate" then name = name .. "~" end
      shadow_verdicts = add_shadow_verdict(shadow_verdicts, outcome, name)
    end
  end
  return verdicts, described, delay_us, shadow_verdicts
end

-- Returns the first live match that refuses without asking, which no wait helps; and the shadow verdicts with those of
-- the shadows among them.
local function denied_by(denied, shadow_verdicts)
  local first
  for i = 1, #denied do
    if denied[i].shadow then
      shadow_verdicts = add_shadow_verdict(shadow_verdicts, log_status.DENIED, denied[i].rule.name)
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
local function refuse(rule, charges, outcomes, denied)
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
local function write_variables(allowed, rule, remaining, delay_us, shadow_verdicts)
  write("headgate_status", log_status.status(allowed, delay_us > 0, shadow_verdicts))
  local dry_run = shadow_verdicts and log_status.dry_run(shadow_verdicts, shadow_verdicts.names)
  if dry_run then write("headgate_dry_run", dry_run) end
  if not rule then return end
  write("headgate_rule", rule.name)
  write("headgate_remaining", remaining)
end

local function seconds(delay_us) return delay_us > 0 and delay_us / 1000000 or nil end

-- Writes the decision about several charges. Returns the status that the request ends with, if it ends here, and the
-- seconds that it waits, if it does.
function M.several(bundle, allowed, charges, outcomes, denied)
  local rule, remaining, wait_us
  local verdicts, described, delay_us, shadow_verdicts = summarize(allowed, charges, outcomes)
  if described then rule, remaining, wait_us = described.rule, described.outcome[2], described.outcome[3] end
  if denied then
    local first
    first, shadow_verdicts = denied_by(denied, shadow_verdicts)
    if first then rule, remaining, wait_us = first.rule, 0, nil end
  end
  write_variables(allowed, rule, remaining, allowed and delay_us or 0, shadow_verdicts)
  if rule then headers.put(response_headers, bundle.headers, verdicts, wait_us, allowed) end
  if not allowed then return refuse(rule, charges, outcomes, denied), nil end
  return nil, seconds(delay_us)
end

-- Writes the decision about a single live charge, the case of most requests.
function M.single(bundle, charge, outcome)
  local allowed, rule = outcome[1] == 1, charge.rule
  write_variables(allowed, rule, outcome[2], outcome[5], nil)
  headers.put_one(response_headers, bundle.headers, charge, outcome)
  if not allowed then return refuse(rule), nil end
  return nil, seconds(outcome[5])
end

return M
