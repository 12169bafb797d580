-- Matches calls with rules: which rules of a rulebook apply to a call, under which key, by which limits, at which cost.
-- The twin of rules/match.py.
--
-- A rulebook is compiled from its canonical document, as headgate writes and publishes it, decoded: defaults and named
-- conditions are resolved there already, and `charge_options` lists the cases of each rule in their order. Each rule
-- becomes two functions, whether it applies and the match it makes of the call; an index selects the rules to try;
-- finally rules that replace others remove them.
--
-- Laws (tests/vectors, tests/nginx): matches come in the order of the rulebook, byte for byte those of Python; no
-- engine is asked, and no state is kept.

local compile_rule = require "resty.headgate.rules.compile_rule"
local condition = require "resty.headgate.rules.condition"
local crc32 = require "resty.headgate.text.crc32"
local rule_index = require "resty.headgate.rules.rule_index"

local M = {}

-- Returns the rules that replace others, each after all that may replace it.
local function replacers_first(rules)
  local replacers, order, visited = {}, {}, {}
  for _, rule in ipairs(rules) do
    for _, name in ipairs(rule.replaces or {}) do
      replacers[name] = replacers[name] or {}
      table.insert(replacers[name], rule)
    end
  end
  local function visit(rule)
    if visited[rule.name] then return end
    visited[rule.name] = true
    for _, other in ipairs(replacers[rule.name] or {}) do visit(other) end
    if rule.replaces then order[#order + 1] = rule end
  end
  for _, rule in ipairs(rules) do visit(rule) end
  return order
end

-- Removes the matches of replaced rules: a rule replaces others where it is live, and not replaced itself.
local function apply_replacements(matches, replacing_rules)
  local is_live, replaced, remaining = {}, {}, {}
  for _, match in ipairs(matches) do is_live[match.rule.name] = not match.shadow and not match.denied end
  for _, rule in ipairs(replacing_rules) do
    if is_live[rule.name] and not replaced[rule.name] then
      for _, name in ipairs(rule.replaces) do replaced[name] = true end
    end
  end
  for _, match in ipairs(matches) do
    if not replaced[match.rule.name] then remaining[#remaining + 1] = match end
  end
  return remaining
end

local function unconditional(attributes) return attributes end

-- Returns the match of an entry with a call; nil if it does not apply.
local function evaluate_entry(entry, attributes, cost)
  local bound_attributes = entry.match_condition(attributes)
  return bound_attributes and entry.evaluate(bound_attributes, cost)
end

local NONE = {}

-- Compiles a rulebook into a function of normalized attributes (attributes.lua) and the cost, by which a rule's own is
-- multiplied: 1 by default. It returns the match of a call that meets one rule; otherwise nil, and a list of matches.
-- Also returns, for each rule, all limits that it may choose and all of its candidate's. `checksum` computes CRC-32; by
-- default crc32.lua.
function M.compile(document, checksum)
  local entries, conditions, choices, replacing_rules = {}, {}, {}, replacers_first(document.rules)
  for i, rule in ipairs(document.rules) do
    local charge_options = document.charge_options and document.charge_options[rule.name] or {}
    local evaluate, limits, candidates = compile_rule.compile(rule, charge_options.cases or {}, checksum or crc32)
    local match_condition = rule.when and condition.compile(rule.when).match or unconditional
    entries[i] = { number = i, match_condition = match_condition, evaluate = evaluate }
    conditions[i] = rule.when
    choices[i] = { limits = limits, candidates = candidates or {} }
  end
  local find_candidates = rule_index.build(entries, conditions)
  local function match_call(attributes, cost)
    local candidate_entries = find_candidates(attributes)
    cost = cost or 1
    local single = candidate_entries[1] and evaluate_entry(candidate_entries[1], attributes, cost)
    if not candidate_entries[2] then return single, NONE end
    local matches = { single or nil }
    for i = 2, #candidate_entries do
      single = evaluate_entry(candidate_entries[i], attributes, cost)
      if single then matches[#matches + 1] = single end
    end
    return nil, #replacing_rules > 0 and apply_replacements(matches, replacing_rules) or matches
  end
  return match_call, choices
end

return M
