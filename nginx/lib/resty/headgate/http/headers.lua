-- Writes the header fields about limits, in the form that the rulebook names. The twin of http/headers.py, where the
-- forms and their laws are described.
--
--   draft-11   RateLimit-Policy: "login";q=10;w=60      RateLimit: "login";r=3;t=42
--   legacy     X-RateLimit-Limit, -Remaining, -Reset, of the verdict that decides
--   envoy      the same, and X-RateLimit-Limit goes on with every policy
--   spring     X-RateLimit-Remaining, -Burst-Capacity, -Replenish-Rate, -Requested-Tokens
--   off        none of these; Retry-After is there on refusals in every form
--
-- A verdict is { rule = a bundle's rule, limit = a bundle's limit, outcome = Outcome, cost = n }. The caller passes the
-- verdicts that are live and limited. The outcome of a rule that is locked out (-3) is written as that of any refusal.
--
-- This runs for every request. Fields are written one by one into ngx.header or any other table. The parts that depend
-- on the limit and the name alone are formatted once and cached on the limit, as `policy_items`: so one verdict costs
-- one text and no table.
--
-- Laws (tests/nginx/http/test_headers.py):
--   - the fields are those that Python writes, in its order, whatever was decided;
--   - items cached on a limit are never used for another rule, or for another count of the same name;
--   - a value is printable ASCII, whatever a rule is called, and a number has at most 15 digits and no exponent.

local M = {}

local SECOND_US = 1000000
local MAX_FIELD_INTEGER = 999999999999999 -- the largest integer of a structured field

local floor = math.floor
local most_restrictive = require("resty.headgate.http.deciding_verdict").most_restrictive

-- Returns a number as it is appended to a text: Lua writes up to 14 digits by itself, and an exponent from there on.
local function digits(number)
  if number < 1e14 then return number end
  return string.format("%.0f", number)
end

M.digits = digits

local function seconds(us)
  local rounded = floor(us / SECOND_US)
  if rounded * SECOND_US < us then rounded = rounded + 1 end
  return rounded < MAX_FIELD_INTEGER and rounded or MAX_FIELD_INTEGER
end

-- Returns a structured field's String: quoted, and printable ASCII only.
local function quoted(text)
  local printable = string.gsub(text, "[\192-\255][\128-\191]*", "?")
  printable = string.gsub(printable, "[^ -~]", "?")
  return '"' .. string.gsub(printable, '[\\"]', "\\%0") .. '"'
end

-- Formats the parts that are constant for a limit under a name. `occurrence`: how many counts of that name come before.
local function format_policy(limit, name, occurrence)
  local quoted_name = quoted(occurrence > 0 and name .. "#" .. occurrence or name)
  local window = limit.window and ";w=" .. digits(limit.window) or ""
  local unit = limit.window and "" or ';qu="concurrent-requests"'
  local policy = quoted_name .. ";q=" .. digits(limit.quota) .. unit .. window
  return {
    policy = policy, count = quoted_name .. ";r=", envoy = digits(limit.quota) .. window .. ";name=" .. quoted_name,
  }
end

local function cache_policy(limit, name, occurrence)
  local policy_items = limit.policy_items or {}
  limit.policy_items = policy_items
  policy_items[name] = policy_items[name] or {}
  local item = format_policy(limit, name, occurrence)
  policy_items[name][occurrence] = item
  return item
end

local function name_of(verdict)
  local name = verdict.rule.name
  return name ~= "" and name or verdict.limit.text
end

local function item_of(limit, name, occurrence)
  local cached = limit.policy_items and limit.policy_items[name]
  return cached and cached[occurrence] or cache_policy(limit, name, occurrence)
end

-- Returns how many verdicts of the same name come before this one.
local function occurrence_of(verdicts, index)
  local name, occurrence = name_of(verdicts[index]), 0
  for earlier = 1, index - 1 do
    if name_of(verdicts[earlier]) == name then occurrence = occurrence + 1 end
  end
  return occurrence
end

local function remaining_of(limit, outcome)
  local remaining, quota = outcome[2], limit.quota
  if remaining > quota then return quota end
  return remaining > 0 and remaining or 0
end

local function remaining_units(verdict) return remaining_of(verdict.limit, verdict.outcome) end

local function seconds_until_more(outcome)
  return seconds((outcome[1] == 1 or outcome[3] == -1) and outcome[4] or outcome[3])
end

-- Returns the items of a verdict in RateLimit-Policy and RateLimit. A t later than Retry-After (`wait`) is omitted, and
-- slots have none. `occurrence`: how many verdicts of that name come before.
function M.draft_11_items(verdict, outcome, occurrence, wait)
  local limit = verdict.limit
  local item, remaining = item_of(limit, name_of(verdict), occurrence), digits(remaining_of(limit, outcome))
  if not limit.window then return item.policy, item.count .. remaining end
  local until_more = seconds_until_more(outcome)
  if wait and until_more > wait then return item.policy, item.count .. remaining end
  return item.policy, item.count .. remaining .. ";t=" .. digits(until_more)
end

local writers = {}

writers["draft-11"] = function(header, verdicts, wait)
  local policies, counts
  for index = 1, #verdicts do
    local verdict = verdicts[index]
    local policy, count = M.draft_11_items(verdict, verdict.outcome, occurrence_of(verdicts, index), wait)
    policies = policies and policies .. ", " .. policy or policy
    counts = counts and counts .. ", " .. count or count
  end
  header["RateLimit-Policy"] = policies
  header["RateLimit"] = counts
end

local function write_x_ratelimit(header, verdict, limit)
  header["X-RateLimit-Limit"] = limit
  header["X-RateLimit-Remaining"] = "" .. digits(remaining_units(verdict))
  header["X-RateLimit-Reset"] = "" .. digits(seconds_until_more(verdict.outcome))
end

function writers.legacy(header, verdicts)
  local verdict = most_restrictive(verdicts)
  write_x_ratelimit(header, verdict, "" .. digits(verdict.limit.quota))
end

function writers.envoy(header, verdicts)
  local verdict = most_restrictive(verdicts)
  local policies = { "" .. digits(verdict.limit.quota) }
  for index = 1, #verdicts do
    local item = item_of(verdicts[index].limit, name_of(verdicts[index]), occurrence_of(verdicts, index))
    policies[index + 1] = item.envoy
  end
  write_x_ratelimit(header, verdict, table.concat(policies, ", "))
end

function writers.spring(header, verdicts)
  local verdict = most_restrictive(verdicts)
  local limit, cost = verdict.limit, verdict.cost
  header["X-RateLimit-Remaining"] = "" .. digits(remaining_units(verdict))
  header["X-RateLimit-Burst-Capacity"] = "" .. digits(limit.quota)
  if limit.per_second then header["X-RateLimit-Replenish-Rate"] = "" .. digits(limit.per_second) end
  header["X-RateLimit-Requested-Tokens"] = "" .. digits(cost < MAX_FIELD_INTEGER and cost or MAX_FIELD_INTEGER)
end

function writers.off() end

-- Returns the whole seconds after which a refused call may come again; nil if it passed, or if no wait helps (nil or
-- -1).
function M.retry_after(wait_us, allowed)
  if allowed or not wait_us or wait_us < 0 then return nil end
  local wait = seconds(wait_us)
  return wait > 1 and wait or 1
end

-- Returns whether a rulebook can name this form.
function M.is_form(form) return writers[form] ~= nil end

-- Returns whether a call passed without being counted, in an outage: nothing is known of what is left.
local function is_uncounted(outcome) return outcome[1] == 1 and outcome[2] == 0 and outcome[4] == 0 end

M.is_uncounted = is_uncounted

-- Returns the verdicts of which something is known, and that are a promise: an adaptive limit is none.
local function counted(verdicts)
  local counted_verdicts
  for index = 1, #verdicts do
    if is_uncounted(verdicts[index].outcome) or verdicts[index].limit.algorithm == "adaptive" then
      counted_verdicts = counted_verdicts or { unpack(verdicts, 1, index - 1) }
    elseif counted_verdicts then
      counted_verdicts[#counted_verdicts + 1] = verdicts[index]
    end
  end
  return counted_verdicts or verdicts
end

-- Writes the fields of a response into `header`. `wait_us`: the longest retry_after of those that refused.
function M.put(header, form, verdicts, wait_us, allowed)
  local write = writers[form]
  if not write then
    error('"' .. form .. '" is not a form of headers. Known are draft-11, legacy, envoy, spring and off.', 0)
  end
  local wait = M.retry_after(wait_us, allowed)
  verdicts = counted(verdicts)
  if verdicts[1] then write(header, verdicts, wait) end
  if wait then header["Retry-After"] = "" .. digits(wait) end
end

return M
