-- What nginx says and does about a decision: variables for the access log, header fields, a delay, a refusal.
--
-- Who speaks is, of the rules that refuse, the one that refuses longest (of equals the first in the book); of a request
-- that passed, the one that is nearest to its limit.
--
-- Laws (tests/nginx/test_gateway.py): facts stand on refusals as well as on what passes; a delayed request blocks no
-- worker; a refusal without a page of its own is nginx's, so that `error_page` works.

local headers = require "resty.headgate.headers"
local refusal = require "resty.headgate.refusal"
local words = require "resty.headgate.words"
local write = require("resty.headgate.variables").write

local M = {}

local ngx, var, huge, max = ngx, ngx.var, math.huge, math.max

-- No rule applied.
function M.passed() write("headgate_status", "PASSED") end

-- How loudly a live charge speaks: of those that refuse the one that refuses longest, of those that pass the one with
-- the smallest share left. Below zero: it is silent, because another one refused.
local function weight(allowed, facts, limit)
  if allowed then return limit.fresh / (limit.fresh + facts[2]) end
  if facts[1] == 1 then return -1 end
  return facts[3] < 0 and huge or facts[3]
end

-- Of several charges: live verdicts as headers tell them, the place of the one that speaks, the longest delay, and the
-- facts of shadows (nil: there are none).
local function read(decision)
  local verdicts, spoke, loudest, delay_us, shadows = {}, nil, -1, 0, nil
  for i, charge in ipairs(decision.charges) do
    local facts = decision.answers[i]
    if facts and not charge.hand.aside then
      charge.facts = facts
      verdicts[#verdicts + 1] = charge
      delay_us = max(delay_us, facts[5])
      local loud = weight(decision.allowed, facts, charge.limit)
      if loud > loudest then spoke, loudest = charge, loud end
    elseif facts and charge.hand.aside == "shadow" then
      shadows = shadows or {}
      shadows[#shadows + 1] = facts
    end
  end
  return verdicts, spoke, delay_us, shadows
end

-- Of those who refuse without being asked: the first that is live, which no wait helps; and the shadows among them.
local function denied_by(denied, shadows)
  local first
  for i = 1, #denied do
    if denied[i].shadow then
      shadows = shadows or {}
      shadows[#shadows + 1] = words.DENIED
    else
      first = first or denied[i]
    end
  end
  return first, shadows
end

-- The names of the rules that refuse.
local function violated_of(decision)
  local found, known = {}, {}
  local function add(name)
    if not known[name] then known[name], found[#found + 1] = true, name end
  end
  for i, charge in ipairs(decision.charges) do
    local facts = decision.answers[i]
    if facts and facts[1] ~= 1 and not charge.hand.aside then add(charge.hand.terms.rule) end
  end
  for _, match in ipairs(decision.denied or {}) do
    if not match.shadow then add(match.rule.name) end
  end
  return found
end

local function refuse(rule, decision)
  local compiled = rule.refusal
  if not compiled.body and var.http_accept then
    compiled = refusal.answer(compiled, violated_of(decision), var.http_accept)
  end
  if compiled.location then ngx.header["Location"] = compiled.location end
  if not compiled.body then return ngx.exit(compiled.status) end
  ngx.status = compiled.status
  ngx.header["Content-Type"] = compiled.type
  ngx.header["Content-Length"] = #compiled.body
  if var.request_method ~= "HEAD" then ngx.print(compiled.body) end
  return ngx.exit(ngx.HTTP_OK)
end

local function put_fields(fields)
  local header = ngx.header
  local one, two = fields[1], fields[2]
  if one then header[one[1]] = one[2] end
  if two then header[two[1]] = two[2] end
  for i = 3, #fields do header[fields[i][1]] = fields[i][2] end
end

-- Says it, waits, or ends the request. `rule` is the one that speaks, if one does.
local function say(plate, decision, verdicts, rule, remaining, wait_us, delay_us, shadows)
  local allowed = decision.allowed
  write("headgate_status", words.status(allowed, delay_us > 0, shadows))
  if rule then
    write("headgate_rule", rule.name)
    write("headgate_remaining", remaining)
    put_fields(headers.fields(plate.headers, verdicts, wait_us, allowed))
  end
  if not allowed then return refuse(rule, decision) end
  if delay_us > 0 then ngx.sleep(delay_us / 1000000) end
end

function M.give(plate, decision)
  local charges, denied = decision.charges, decision.denied
  local one = charges[1]
  if one and not charges[2] and not denied and not one.hand.aside then -- most requests, and the short way
    local facts = decision.answers[1]
    one.facts = facts
    return say(plate, decision, charges, one.hand.rule, facts[2], facts[3], facts[5], nil)
  end
  local verdicts, spoke, delay_us, shadows = read(decision)
  local rule, remaining, wait_us
  if spoke then rule, remaining, wait_us = spoke.hand.rule, spoke.facts[2], spoke.facts[3] end
  if denied then
    local first
    first, shadows = denied_by(denied, shadows)
    if first then rule, remaining, wait_us = first.rule, 0, nil end
  end
  return say(plate, decision, verdicts, rule, remaining, wait_us, decision.allowed and delay_us or 0, shadows)
end

return M
