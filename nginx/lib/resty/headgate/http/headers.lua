-- What a response says about limits, in the form that the rulebook names. The twin of http/headers.py, where the forms
-- and their laws are told.
--
--   draft-11   RateLimit-Policy: "login";q=10;w=60      RateLimit: "login";r=3;t=42
--   legacy     X-RateLimit-Limit, -Remaining, -Reset, of the one count nearest to its end
--   envoy      the same, and X-RateLimit-Limit goes on with every policy
--   spring     X-RateLimit-Remaining, -Burst-Capacity, -Replenish-Rate, -Requested-Tokens
--   off        none of these; Retry-After is there on refusals in every form
--
-- A verdict is { rule = a plate's rule, limit = a plate's limit, facts = Outcome, cost = n }. Who calls hands over those
-- that are live and limited: in a list (put), or the only one and its facts beside it (put_one). Of a locked out rule
-- (-3) the facts are told as those of any refusal.
--
-- This runs for every request. Fields are put where they belong, ngx.header or any other table, one by one. What
-- depends on the limit and the name alone is worked out once and kept on the limit, as `told`: so one verdict costs one
-- text and no table.
--
-- Laws (tests/nginx/http/test_headers.py):
--   - the fields are those that Python writes, in its order, whatever was decided;
--   - what is kept on a limit is never told of another rule, or of another count of the same name;
--   - a value is printable ASCII, whatever a rule is called, and a number has at most 15 digits and no exponent.

local M = {}

local SECOND = 1000000
local MOST = 999999999999999 -- the largest integer of a structured field

local floor, huge = math.floor, math.huge

-- A number as it is put behind a text: Lua writes 14 digits by itself, and an exponent from there on.
local function digits(number)
  if number < 1e14 then return number end
  return string.format("%.0f", number)
end

local function seconds(us)
  local whole = floor(us / SECOND)
  if whole * SECOND < us then whole = whole + 1 end
  return whole < MOST and whole or MOST
end

-- A structured field's String: quoted, and of printable ASCII alone.
local function quoted(text)
  local plain = string.gsub(text, "[\192-\255][\128-\191]*", "?")
  plain = string.gsub(plain, "[^ -~]", "?")
  return '"' .. string.gsub(plain, '[\\"]', "\\%0") .. '"'
end

-- All that is always the same of a limit under a name; `again`: how many counts of that name come before.
local function written(limit, name, again)
  local word = quoted(again > 0 and name .. "#" .. again or name)
  local window = limit.window and ";w=" .. digits(limit.window) or ""
  local unit = limit.window and "" or ';qu="concurrent-requests"'
  local policy = word .. ";q=" .. digits(limit.quota) .. unit .. window
  return {
    policy = policy, count = word .. ";r=", envoy = digits(limit.quota) .. window .. ";name=" .. word,
  }
end

local function keep(limit, name, again)
  local told = limit.told or {}
  limit.told = told
  told[name] = told[name] or {}
  local found = written(limit, name, again)
  told[name][again] = found
  return found
end

local function name_of(verdict)
  local name = verdict.rule.name
  return name ~= "" and name or verdict.limit.text
end

local function item_of(limit, name, again)
  local known = limit.told and limit.told[name]
  return known and known[again] or keep(limit, name, again)
end

local function told(verdicts, place)
  local verdict = verdicts[place]
  local name, again = name_of(verdict), 0
  for before = 1, place - 1 do
    if name_of(verdicts[before]) == name then again = again + 1 end
  end
  return item_of(verdict.limit, name, again)
end

local function left_of(limit, facts)
  local remaining, quota = facts[2], limit.quota
  if remaining > quota then return quota end
  return remaining > 0 and remaining or 0
end

local function left(verdict) return left_of(verdict.limit, verdict.facts) end

local function more_in(facts)
  return seconds((facts[1] == 1 or facts[3] == -1) and facts[4] or facts[3])
end

-- The items of RateLimit. A t later than Retry-After is left out, and slots have none.
local function count(limit, facts, item, wait)
  local remaining = digits(left_of(limit, facts))
  if not limit.window then return item.count .. remaining end
  local more = more_in(facts)
  if wait and more > wait then return item.count .. remaining end
  return item.count .. remaining .. ";t=" .. digits(more)
end

local forms = {}

forms["draft-11"] = function(header, verdicts, wait)
  local policies, counts
  for place = 1, #verdicts do
    local verdict, item = verdicts[place], told(verdicts, place)
    local one = count(verdict.limit, verdict.facts, item, wait)
    policies = policies and policies .. ", " .. item.policy or item.policy
    counts = counts and counts .. ", " .. one or one
  end
  header["RateLimit-Policy"] = policies
  header["RateLimit"] = counts
end

local function share(verdict) return left(verdict) / verdict.limit.quota end

-- The one that refuses longest; if none does, the one with the least left; the first of equals.
local function nearest(verdicts, least)
  if #verdicts == 1 then return verdicts[1] end
  local found, longest, smallest = nil, -1, huge
  for place = 1, #verdicts do
    local verdict = verdicts[place]
    local facts = verdict.facts
    if facts[1] ~= 1 then
      local wait_us = facts[3] == -1 and huge or facts[3]
      if wait_us > longest then found, longest = verdict, wait_us end
    elseif longest < 0 then
      local rest = least(verdict)
      if rest < smallest then found, smallest = verdict, rest end
    end
  end
  return found
end

local function three(header, verdict, limit)
  header["X-RateLimit-Limit"] = limit
  header["X-RateLimit-Remaining"] = "" .. digits(left(verdict))
  header["X-RateLimit-Reset"] = "" .. digits(more_in(verdict.facts))
end

function forms.legacy(header, verdicts)
  local verdict = nearest(verdicts, share)
  three(header, verdict, "" .. digits(verdict.limit.quota))
end

function forms.envoy(header, verdicts)
  local verdict = nearest(verdicts, left)
  local policies = { "" .. digits(verdict.limit.quota) }
  for place = 1, #verdicts do policies[place + 1] = told(verdicts, place).envoy end
  three(header, verdict, table.concat(policies, ", "))
end

function forms.spring(header, verdicts)
  local verdict = nearest(verdicts, share)
  local limit, cost = verdict.limit, verdict.cost
  header["X-RateLimit-Remaining"] = "" .. digits(left(verdict))
  header["X-RateLimit-Burst-Capacity"] = "" .. digits(limit.quota)
  if limit.per_second then header["X-RateLimit-Replenish-Rate"] = "" .. digits(limit.per_second) end
  header["X-RateLimit-Requested-Tokens"] = "" .. digits(cost < MOST and cost or MOST)
end

function forms.off() end

-- Whole seconds after which a refused call may come again; nil if it passed, or if no wait can help (nil or -1).
function M.retry_after(wait_us, allowed)
  if allowed or not wait_us or wait_us < 0 then return nil end
  local wait = seconds(wait_us)
  return wait > 1 and wait or 1
end

-- Whether a rulebook can name this form.
function M.known(form) return forms[form] ~= nil end

-- Puts the fields of a response into `header`. `wait_us`: the longest retry_after of those that refused.
function M.put(header, form, verdicts, wait_us, allowed)
  local write = forms[form]
  if not write then
    error('"' .. form .. '" is not a form of headers. Known are draft-11, legacy, envoy, spring and off.', 0)
  end
  local wait = M.retry_after(wait_us, allowed)
  if verdicts[1] then write(header, verdicts, wait) end
  if wait then header["Retry-After"] = "" .. digits(wait) end
end

-- The same of one verdict, whose facts stand beside it: in the form that most have, nothing is made but a text.
function M.put_one(header, form, verdict, facts)
  local allowed = facts[1] == 1
  if form ~= "draft-11" then
    verdict.facts = facts
    return M.put(header, form, { verdict }, facts[3], allowed)
  end
  local limit, wait = verdict.limit, M.retry_after(facts[3], allowed)
  local item = item_of(limit, name_of(verdict), 0)
  header["RateLimit-Policy"] = item.policy
  header["RateLimit"] = count(limit, facts, item, wait)
  if wait then header["Retry-After"] = "" .. digits(wait) end
end

return M
