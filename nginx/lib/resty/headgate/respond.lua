-- What nginx says and does about a decision: variables for the access log, header fields, a delay, a refusal.
--
-- Who speaks is, of the rules that refuse, the one that refuses longest (of equals the first in the book); of a request
-- that passed, the one that is nearest to its limit.
--
-- Laws (tests/nginx/test_gateway.py): facts stand on refusals as well as on what passes; a delayed request blocks no
-- worker; a refusal without a page of its own is nginx's, so that `error_page` works.

local fields = require "resty.headgate.ffi.response_headers"
local headers = require "resty.headgate.http.headers"
local refusal = require "resty.headgate.http.refusal_body"
local remembering = require "resty.headgate.memoize"
local variables = require "resty.headgate.ffi.variables"
local words = require "resty.headgate.request.log_status"

local M = {}

local ngx, huge, max = ngx, math.huge, math.max
local read, write = variables.read, variables.write
local wants_json = remembering(refusal.wants_json)

-- No rule applied.
function M.passed()
  write("headgate_status", "PASSED")
  return nil
end

-- How loudly a live charge speaks: of those that refuse the one that refuses longest, of those that pass the one with
-- the smallest share left. Below zero: it is silent, because another one refused.
local function weight(allowed, facts, limit)
  if allowed then return limit.fresh / (limit.fresh + facts[2]) end
  if facts[1] == 1 then return -1 end
  return facts[3] < 0 and huge or facts[3]
end

-- Adds to the list, which may be nil, what a shadow or candidate decided, and its name.
local function add_aside(asides, facts, name)
  asides = asides or { names = {} }
  asides[#asides + 1] = facts
  asides.names[#asides] = name
  return asides
end

-- Of several charges: live verdicts as headers tell them, the place of the one that speaks, the longest delay, and what
-- was decided aside.
local function spoken(allowed, charges, answers)
  local verdicts, spoke, loudest, delay_us, asides = {}, nil, -1, 0, nil
  for i = 1, #charges do
    local charge, facts = charges[i], answers[i]
    if facts and not charge.hand.aside then
      charge.facts = facts
      verdicts[#verdicts + 1] = charge
      delay_us = max(delay_us, facts[5])
      local loud = weight(allowed, facts, charge.limit)
      if loud > loudest then spoke, loudest = charge, loud end
    elseif facts then
      local name = charge.rule.name
      asides = add_aside(asides, facts, charge.hand.aside == "candidate" and name .. "~" or name)
    end
  end
  return verdicts, spoke, delay_us, asides
end

-- Of those who refuse without being asked: the first that is live, which no wait helps; and the shadows among them.
local function denied_by(denied, asides)
  local first
  for i = 1, #denied do
    if denied[i].shadow then
      asides = add_aside(asides, words.DENIED, denied[i].rule.name)
    else
      first = first or denied[i]
    end
  end
  return first, asides
end

-- The names of the rules that refuse.
local function violated_of(charges, answers, denied)
  local found, known = {}, {}
  local function add(name)
    if not known[name] then known[name], found[#found + 1] = true, name end
  end
  for i, charge in ipairs(charges) do
    local facts = answers[i]
    if facts and facts[1] ~= 1 and not charge.hand.aside then add(charge.rule.name) end
  end
  for _, match in ipairs(denied or {}) do
    if not match.shadow then add(match.rule.name) end
  end
  return found
end

-- Prepares the refusal; with which status it ends. No charges: the rule was the only one.
local function refuse(rule, charges, answers, denied)
  local compiled = rule.refusal
  local accept = not compiled.body and read "http_accept"
  if accept and wants_json(accept) then
    compiled = refusal.answer(compiled, charges and violated_of(charges, answers, denied) or { rule.name }, accept)
  end
  if compiled.location then fields["Location"] = compiled.location end
  if not compiled.body then return compiled.status end
  ngx.status = compiled.status
  fields["Content-Type"] = compiled.type
  fields["Content-Length"] = #compiled.body
  if read "request_method" ~= "HEAD" then ngx.print(compiled.body) end
  return ngx.HTTP_OK
end

-- What other modules are told. `rule` is the one that speaks, if one does.
local function note(allowed, rule, remaining, delay_us, asides)
  write("headgate_status", words.status(allowed, delay_us > 0, asides))
  local dry_run = asides and words.dry_run(asides, asides.names)
  if dry_run then write("headgate_dry_run", dry_run) end
  if not rule then return end
  write("headgate_rule", rule.name)
  write("headgate_remaining", remaining)
end

local function seconds(delay_us) return delay_us > 0 and delay_us / 1000000 or nil end

-- Says it. The status that the request ends with, if it ends here; the seconds that it waits, if it does.
function M.give(plate, allowed, charges, answers, denied)
  local rule, remaining, wait_us
  local verdicts, spoke, delay_us, asides = spoken(allowed, charges, answers)
  if spoke then rule, remaining, wait_us = spoke.rule, spoke.facts[2], spoke.facts[3] end
  if denied then
    local first
    first, asides = denied_by(denied, asides)
    if first then rule, remaining, wait_us = first.rule, 0, nil end
  end
  note(allowed, rule, remaining, allowed and delay_us or 0, asides)
  if rule then headers.put(fields, plate.headers, verdicts, wait_us, allowed) end
  if not allowed then return refuse(rule, charges, answers, denied), nil end
  return nil, seconds(delay_us)
end

-- The same of one live charge, as most requests make it.
function M.alone(plate, charge, facts)
  local allowed, rule = facts[1] == 1, charge.rule
  note(allowed, rule, facts[2], facts[5], nil)
  headers.put_one(fields, plate.headers, charge, facts)
  if not allowed then return refuse(rule), nil end
  return nil, seconds(facts[5])
end

return M
