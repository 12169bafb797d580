-- Compiles a rule into a function that makes a match of a call for which its `when` holds, or nil. The twin of
-- rules/matching/compile_rule.py.
--
-- A match is { rule, key, limits, cost, shadow, candidate, denied }: the rule as in the document, the key, texts of
-- limits (none: unlimited), the cost, whether it is only shadowed, the limits of the candidate if there is one, and why
-- the rule refuses without asking, if it does. It has fields for what a charge also needs (decide.lua).
--
-- Laws: missing attributes are looked for in the key first, then in the cost; the mode is decided by the key; a cost of
-- 0 is no match.

local compose = require "resty.headgate.compose_functions"
local condition = require "resty.headgate.rules.condition"
local keys = require "resty.headgate.rules.keys"

local M = {}

local ALL_KEYS = 10000 -- rollouts are in hundredths of a percent
local MAX_EXACT_TEXT = "9007199254740992" -- 2^53: beyond it doubles skip whole numbers
local MODES = { enforce = { ALL_KEYS, 0 }, shadow = { 0, ALL_KEYS }, off = { 0, 0 } }

-- Returns the list; an error unless it names each case once.
local function checked_order(cases, case_order)
  local rest = {}
  for name in pairs(cases) do rest[name] = true end
  for _, name in ipairs(case_order) do
    if not rest[name] then error("the bundle lists a case " .. tostring(name) .. " that the rule does not have.", 0) end
    rest[name] = nil
  end
  local name = next(rest)
  if name == nil then return case_order end
  error("the bundle does not list the case " .. name .. " in its order: another version of headgate wrote it. Push "
    .. "the rulebook again, or compile it again.", 0)
end

-- Compiles a value, or a choice of values by an attribute: the first case that matches. `case_order` lists the cases in
-- their order. Also returns all values: those of the cases, then `otherwise`.
local function choice(spec, read, case_order)
  if type(spec) ~= "table" or not spec.cases then
    local value = read(spec)
    return function() return value end, { value }
  end
  local cases, values, otherwise = {}, {}, read(spec.otherwise)
  for i, text in ipairs(checked_order(spec.cases, case_order or {})) do
    local matches, value = condition.test(spec.by, text).match, read(spec.cases[text])
    values[i] = value
    cases[i] = function(attributes) return matches(attributes) and value end
  end
  values[#values + 1] = otherwise
  local first_match = compose.first(cases)
  return function(attributes) return first_match(attributes) or otherwise end, values
end

local function limits(spec)
  if spec == "unlimited" then return {} end
  return type(spec) == "table" and spec or { spec }
end

-- Parses a whole number of at most 2^53, in digits and nothing else.
local function parse_count(text)
  if not text or #text > 16 or not string.find(text, "^%d+$") then return nil end
  if #text == 16 and text > MAX_EXACT_TEXT then return nil end
  return tonumber(text)
end

-- Compiles the mode: whether the rule is only shadowed, nil if it is off; for all keys, or as a function of the key.
local function compile_mode(rule, crc32)
  local spec = rule.mode or "enforce"
  local portions = MODES[spec] or {
    math.floor((spec.enforce or 0) * 100 + 0.5), math.floor((spec.shadow or 0) * 100 + 0.5),
  }
  local enforced, applied = portions[1], portions[1] + portions[2]
  if applied == 0 then return nil, nil end
  if enforced == ALL_KEYS or portions[2] == ALL_KEYS then return enforced == 0, nil end
  return nil, function(key)
    local position = crc32(rule.name .. "|" .. key) % ALL_KEYS
    if position >= applied then return nil end
    return position >= enforced
  end
end

local function missing_text(missing_names)
  return table.concat(missing_names, " and ") .. (#missing_names == 1 and " is missing" or " are missing")
end

-- Compiles the cost into a function that returns the cost of a call, or nil and why it has none.
local function compile_cost(spec, case_order)
  local cost_of = (choice(spec, function(value) return value end, case_order))
  return function(attributes)
    local cost = cost_of(attributes)
    if type(cost) == "number" then return cost, nil end
    local text = attributes[cost]
    local count = parse_count(text)
    if count then return count, nil end
    local problem = "no whole number"
    if not text or text == "" then
      problem = "missing"
    elseif string.find(text, "^%d+$") then
      problem = "more than 2^53"
    end
    return nil, cost .. ", the cost, is " .. problem
  end
end

-- Compiles a rule into a function of attributes, with the captures of its paths, and the caller's cost; also returns
-- all limits that it may choose, and those of its candidate. `case_orders`: the cases of its limit, candidate and cost.
function M.compile(rule, case_orders, crc32)
  local is_excepted = rule.except and condition.compile(rule.except).match
  local key_of = keys.compile(keys.dimensions(rule.key))
  local missing = rule.missing or "deny"
  local all_keys_shadowed, shadow_of = compile_mode(rule, crc32)
  local cost_of = rule.cost ~= nil and compile_cost(rule.cost, case_orders.cost)
  local limits_of, all_limits = choice(rule.limit, limits, case_orders.limit)
  local only_limits = #all_limits == 1 and all_limits[1]
  local candidate_of, candidates
  if rule.candidate then candidate_of, candidates = choice(rule.candidate, limits, case_orders.candidate) end

  return function(attributes, cost)
    if is_excepted and is_excepted(attributes) then return nil end
    local denied
    local key, missing_names = key_of(attributes)
    if missing_names and missing == "skip" then return nil end
    if missing_names and missing == "deny" then denied = missing_text(missing_names) end
    local shadow = all_keys_shadowed
    if shadow_of then shadow = shadow_of(key) end
    if shadow == nil then return nil end
    if cost_of then
      local rule_cost, problem = cost_of(attributes)
      if not rule_cost and missing == "skip" then return nil end
      if not rule_cost and missing == "deny" then denied = denied or problem end
      cost = math.min(cost * (rule_cost or 1), tonumber(MAX_EXACT_TEXT))
    end
    if cost == 0 then return nil end
    local match = {
      rule = rule, key = key, limits = only_limits or limits_of(attributes), cost = cost, shadow = shadow,
      bound_limit = false, limit = false, outcome = false,
    }
    if candidate_of then match.candidate = candidate_of(attributes) end
    if denied then match.denied = denied end
    return match
  end, all_limits, candidates
end

return M
