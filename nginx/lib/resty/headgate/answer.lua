-- What nginx says and does about a decision: variables for the access log, header fields, a delay, a refusal.
--
-- Who speaks is, of the rules that refuse, the one that refuses longest (of equals the first in the book); of a request
-- that passed, the one that is nearest to its limit.
--
-- Laws (tests/nginx/test_answer.py): facts stand on refusals as well as on what passes; a delayed request blocks no
-- worker; a refusal without a page of its own is nginx's, so that `error_page` works.

local headers = require "resty.headgate.headers"
local refusal = require "resty.headgate.refusal"
local words = require "resty.headgate.words"

local M = {}

local ngx, var, huge = ngx, ngx.var, math.huge

-- A variable can be written only if the configuration has it, and uses it: a map, and a log_format. Which of them can,
-- is found out once.
local writable = {}

local function put(name, value) var[name] = value end

local function write(name, value)
  local can = writable[name]
  if can then
    var[name] = value
  elseif can == nil then
    writable[name] = pcall(put, name, value)
  end
end

-- No rule applied.
function M.passed() write("headgate_status", "PASSED") end

-- How loudly a live charge speaks: of those that refuse the one that refuses longest, of those that pass the one with
-- the smallest share left. Below zero: it is silent, because another one refused.
local function weight(allowed, facts, limit)
  if allowed then return 1 - facts[2] / limit.fresh * 0.5 end
  if facts[1] == 1 then return -1 end
  return facts[3] < 0 and huge or facts[3]
end

-- What is said about a decision: live `verdicts` as headers tell them, the place of the one that speaks and how loudly
-- it does, the longest delay, and the facts of shadows (nil: there are none).
local function heard(said, decision, i)
  local facts, charge = decision.answers[i], decision.charges[i]
  if not facts then return end
  local hand = charge.hand
  if not hand.aside then
    local verdicts = said.verdicts
    verdicts[#verdicts + 1] = { rule = hand.terms.rule, limit = hand.limit, facts = facts, cost = charge.cost }
    if facts[5] > said.delay_us then said.delay_us = facts[5] end
    local loud = weight(decision.allowed, facts, hand.limit)
    if loud > said.loudest then said.spoke, said.loudest = i, loud end
  elseif hand.aside == "shadow" then
    said.shadows = said.shadows or {}
    said.shadows[#said.shadows + 1] = facts
  end
end

local function read(decision)
  local said = { verdicts = {}, spoke = false, loudest = -1, delay_us = 0, shadows = nil }
  heard(said, decision, 1)
  for i = 2, #decision.charges do heard(said, decision, i) end
  return said
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

-- Says it, waits, or ends the request.
function M.give(plate, decision)
  local allowed, said = decision.allowed, read(decision)
  local rule, remaining, wait_us
  if said.spoke then
    local facts = decision.answers[said.spoke]
    rule, remaining, wait_us = decision.charges[said.spoke].hand.rule, facts[2], facts[3]
  end
  if decision.denied then
    local first
    first, said.shadows = denied_by(decision.denied, said.shadows)
    if first then rule, remaining, wait_us = first.rule, 0, nil end
  end
  write("headgate_status", words.status(allowed, said.delay_us > 0, said.shadows))
  if rule then
    write("headgate_rule", rule.name)
    write("headgate_remaining", remaining)
    put_fields(headers.fields(plate.headers, said.verdicts, wait_us, allowed))
  end
  if not allowed then return refuse(rule, decision) end
  if said.delay_us > 0 then ngx.sleep(said.delay_us / 1000000) end
end

return M
