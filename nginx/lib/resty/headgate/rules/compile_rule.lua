-- What a rule makes of a call that its `when` holds for: a match, or nothing. The twin of
-- rules/matching/compile_rule.py.
--
-- A match is { rule, key, limits, cost, shadow, candidate, denied }: the rule as the document has it, the key, texts of
-- limits (none: unlimited), the cost, whether it is only shadowed, a candidate's limits if there is one, and why the
-- rule refuses without asking anybody, if it does. There is room in it for what a charge is beside (call.lua).
--
-- Laws: what is missing is looked for in the key first, then in the cost; the mode is decided by the key; a cost of 0
-- is no match.

local chain = require "resty.headgate.compose"
local condition = require "resty.headgate.rules.condition"
local json = require "resty.headgate.text.json"
local keys = require "resty.headgate.rules.keys"

local M = {}

local WHOLE = 10000 -- keys are told apart in hundredths of a percent
local EXACT = "9007199254740992" -- 2^53: beyond it a double is not every whole number
local MODES = { enforce = { WHOLE, 0 }, shadow = { 0, WHOLE }, off = { 0, 0 } }

-- A value, or one of several by an attribute: the first case that holds. Also all values there are: those of the
-- cases in their order, then the one of `otherwise`.
local function choice(said, read)
  if type(said) ~= "table" or not said.cases then
    local value = read(said)
    return function() return value end, { value }
  end
  local cases, values, otherwise = {}, {}, read(said.otherwise)
  for i, text in ipairs(json.names(said.cases)) do
    local bound, value = condition.test(said.by, text).bound, read(said.cases[text])
    values[i] = value
    cases[i] = function(seen) return bound(seen) and value end
  end
  values[#values + 1] = otherwise
  local chosen = chain.first(cases)
  return function(seen) return chosen(seen) or otherwise end, values
end

local function limits(said)
  if said == "unlimited" then return {} end
  return type(said) == "table" and said or { said }
end

-- A whole number of at most 2^53, in digits and nothing else.
local function counted(text)
  if not text or #text > 16 or not string.find(text, "^%d+$") then return nil end
  if #text == 16 and text > EXACT then return nil end
  return tonumber(text)
end

-- For a key: whether the rule is only shadowed, or nil if it is off. All keys or none take no checksum.
local function moded(rule, crc32)
  local said = rule.mode or "enforce"
  local shares = MODES[said] or {
    math.floor((said.enforce or 0) * 100 + 0.5), math.floor((said.shadow or 0) * 100 + 0.5),
  }
  local enforced, on = shares[1], shares[1] + shares[2]
  return function(key)
    if on == 0 then return nil end
    if enforced == WHOLE or shares[2] == WHOLE then return enforced == 0 end
    local place = crc32(rule.name .. "|" .. key) % WHOLE
    if place >= on then return nil end
    return place >= enforced
  end
end

local function lacking(names)
  return table.concat(names, " and ") .. (#names == 1 and " is missing" or " are missing")
end

-- What a call costs, and if that cannot be told, why.
local function costed(said)
  local cost_of = (choice(said, function(value) return value end))
  return function(seen)
    local cost = cost_of(seen)
    if type(cost) == "number" then return cost, nil end
    local text = seen[cost]
    local found = counted(text)
    if found then return found, nil end
    local why = "no whole number"
    if not text or text == "" then
      why = "missing"
    elseif string.find(text, "^%d+$") then
      why = "more than 2^53"
    end
    return nil, cost .. ", the cost, is " .. why
  end
end

-- The rule as a function of attributes, with what its paths captured, and the caller's cost; and all the limits that
-- it may choose, those of its candidate apart.
function M.judge(rule, crc32)
  local unless = rule.except and condition.compile(rule.except).bound
  local key_of = keys.former(keys.dimensions(rule.key))
  local missing = rule.missing or "deny"
  local mode = moded(rule, crc32)
  local cost_of = rule.cost ~= nil and costed(rule.cost)
  local limits_of, all = choice(rule.limit, limits)
  local candidate_of, candidates
  if rule.candidate then candidate_of, candidates = choice(rule.candidate, limits) end

  return function(seen, cost)
    if unless and unless(seen) then return nil end
    local denied
    local key, names = key_of(seen)
    if names and missing == "skip" then return nil end
    if names and missing == "deny" then denied = lacking(names) end
    local shadow = mode(key)
    if shadow == nil then return nil end
    if cost_of then
      local stated, why = cost_of(seen)
      if not stated and missing == "skip" then return nil end
      if not stated and missing == "deny" then denied = denied or why end
      cost = math.min(cost * (stated or 1), tonumber(EXACT))
    end
    if cost == 0 then return nil end
    local match = {
      rule = rule, key = key, limits = limits_of(seen), cost = cost, shadow = shadow, hand = false, limit = false,
      facts = false,
    }
    if candidate_of then match.candidate = candidate_of(seen) end
    if denied then match.denied = denied end
    return match
  end, all, candidates
end

return M
