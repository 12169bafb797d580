-- Matching: which rules of a book a call meets, under which key, by which limits, at which cost. The twin of
-- rules/match.py.
--
-- A book is compiled from its canonical document, as headgate writes and publishes it, read by json.lua: defaults and
-- named conditions are worked out there already. Each rule becomes two functions, whether it applies and what it makes
-- of the call; an index tells of which rules that is worth asking; rules that replace others take them out at last.
--
-- Laws (tests/vectors, tests/nginx): matches come in the order of the book, byte for byte those of Python; nothing is
-- asked and nothing is kept.

local condition = require "resty.headgate.rules.condition"
local crc32 = require "resty.headgate.text.crc32"
local index = require "resty.headgate.rules.rule_index"
local judging = require "resty.headgate.rules.compile_rule"

local M = {}

-- The rules that replace others, each after all that may take it out.
local function replacers_first(rules)
  local replacers, order, done = {}, {}, {}
  for _, rule in ipairs(rules) do
    for _, name in ipairs(rule.replaces or {}) do
      replacers[name] = replacers[name] or {}
      table.insert(replacers[name], rule)
    end
  end
  local function visit(rule)
    if done[rule.name] then return end
    done[rule.name] = true
    for _, other in ipairs(replacers[rule.name] or {}) do visit(other) end
    if rule.replaces then order[#order + 1] = rule end
  end
  for _, rule in ipairs(rules) do visit(rule) end
  return order
end

-- What is left: a rule takes others out where it applies in earnest, and was not taken out itself.
local function left(matches, turns)
  local earnest, out, kept = {}, {}, {}
  for _, match in ipairs(matches) do earnest[match.rule.name] = not match.shadow and not match.denied end
  for _, rule in ipairs(turns) do
    if earnest[rule.name] and not out[rule.name] then
      for _, name in ipairs(rule.replaces) do out[name] = true end
    end
  end
  for _, match in ipairs(matches) do
    if not out[match.rule.name] then kept[#kept + 1] = match end
  end
  return kept
end

local function always(seen) return seen end

-- What an entry makes of a call; nil if that is nothing.
local function look(entry, attributes, cost)
  local seen = entry.bound(attributes)
  return seen and entry.judged(seen, cost)
end

local NONE = {}

-- A book as a function of attributes in normal form (attributes.lua) and the cost, by which a rule's own is
-- multiplied: 1 unless given. It tells the match of a call that meets one rule; of any other it tells nil, and a list
-- of matches. Also, for each rule, all limits that it may choose and all of its candidate's. `checksum` is CRC-32, for
-- whoever has a faster one than crc32.lua.
function M.compile(document, checksum)
  local entries, conditions, choices, turns = {}, {}, {}, replacers_first(document.rules)
  for i, rule in ipairs(document.rules) do
    local judged, limits, candidates = judging.judge(rule, checksum or crc32)
    entries[i] = { number = i, bound = rule.when and condition.compile(rule.when).bound or always, judged = judged }
    conditions[i] = rule.when
    choices[i] = { limits = limits, candidates = candidates or {} }
  end
  local candidates = index.of(entries, conditions)
  local function met(attributes, cost)
    local few = candidates(attributes)
    cost = cost or 1
    local one = few[1] and look(few[1], attributes, cost)
    if not few[2] then return one, NONE end
    local found = { one or nil }
    for i = 2, #few do
      one = look(few[i], attributes, cost)
      if one then found[#found + 1] = one end
    end
    return nil, #turns > 0 and left(found, turns) or found
  end
  return met, choices
end

return M
