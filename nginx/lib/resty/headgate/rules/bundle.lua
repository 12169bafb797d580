-- A plate: a rulebook with all that Python worked out of it for a gateway (gateway/bundle.py), compiled.
--
-- Compiled, it answers two questions: which rules a request meets (`met`), and by which hands they charge. A Hand
-- is one limit of one rule under the name that its counts have, and knows where it is decided:
--
--   here         where: node and split, and everything if there is no Redis: on the shared dict
--   slots        "20 slots": acquired by a question of its own, and held until the request ends
--   prefetched   units of a hot key, fetched ahead
--   there        everything else: in Redis, in one question
--
-- Laws (tests/nginx/test_gateway.py, test_faults.py): a hand is called as Python calls the same count; what cannot be
-- followed is refused whole, with a sentence, and the plate in force stays.

local headers = require "resty.headgate.http.headers"
local json = require "resty.headgate.text.json"
local match = require "resty.headgate.rules.match"
local naming = require "resty.headgate.engines.redis.keys"
local refusal = require "resty.headgate.http.refusal_body"
local share = require "resty.headgate.engines.fallback.limit_share"

local M = {}

local HERE, SLOTS, PREFETCHED, THERE = "here", "slots", "prefetched", "there"

local function fail(...) error(table.concat { ... }, 0) end

local function place_of(rule, limit, terms, only_here)
  if limit.algorithm == "slots" then return SLOTS end
  if only_here or rule.where == "node" or rule.where == "split" then return HERE end
  return terms.prefetch and PREFETCHED or THERE
end

-- What counts are filed under: by position, and by case where cases are counted apart.
local function count_name(rule, position, word, candidate)
  local name = candidate and rule.name .. "~" or rule.name
  if position > 1 then name = name .. "#" .. position - 1 end
  return word and word ~= "" and name .. "@" .. word or name
end

local function terms_of(rule, said, aside, chosen)
  local prefetch = not aside and said.prefetch or nil
  local candidate = aside == "candidate"
  return {
    rule = rule.name, aside = aside ~= nil, lockout = not candidate and said.lockout or nil,
    overrides = not candidate and rule.overrides or false, fallback = rule.fallback or chosen.fallback,
    deadline = said.deadline or chosen.deadline, prefetch = prefetch,
  }
end

-- The hands of one rule's limits, one table of terms for all of them.
local function bound(plate, rule, limits, word, aside, chosen)
  local hands, terms = {}, terms_of(rule, plate.terms[rule.name] or {}, aside, chosen)
  for position, text in ipairs(limits) do
    local limit = plate.limits[text] or fail('rule "', rule.name, '": the plate does not say what ', text, " is.")
    local divided = limit
    if rule.where == "split" then divided = share.even(limit, chosen.place(rule)) end
    local name = count_name(rule, position, word, aside == "candidate")
    local where = place_of(rule, limit, terms, chosen.only_here)
    local trouble = where == HERE and chosen.refuses and chosen.refuses(divided)
    if trouble then fail('rule "', rule.name, '": ', trouble) end
    hands[position] = {
      rule = rule, name = name, aside = aside, limit = divided, terms = terms, where = where,
      here = where == HERE or chosen.only_here or rule.where == "node" or rule.where == "split",
      head = naming.head(chosen.prefix, limit.algorithm, name),
    }
  end
  return hands
end

-- Puts for every limit that a rule may choose its hands into `into`.
local function bind_all(plate, rule, values, words, asides, into, chosen)
  for i, limits in ipairs(values) do
    into[limits] = {}
    for _, aside in ipairs(asides) do
      into[limits][aside] = bound(plate, rule, limits, words and words[i], aside ~= "live" and aside or nil, chosen)
    end
  end
end

-- What a book says that has no meaning without Redis; nil if nothing does.
local function unheard(rules)
  local names = {}
  for _, rule in ipairs(rules) do
    if rule.overrides then names[#names + 1] = rule.name end
  end
  if #names == 0 then return nil end
  return "overrides lie in Redis, and there is none here: they are not used by " .. table.concat(names, ", ") .. "."
end

local function is_limit(limit)
  return type(limit) == "table" and type(limit.algorithm) == "string" and type(limit.numbers) == "table"
    and type(limit.quota) == "number" and type(limit.fresh) == "number"
end

-- Puts its text on each limit. An algorithm that has no model here is of a newer Python.
local function with_texts(limits)
  for text, limit in pairs(limits) do
    if not is_limit(limit) then fail("the plate does not say what ", text, " is.") end
    if not pcall(require, "resty.headgate.algorithms." .. limit.algorithm) then
      fail('this nginx knows no "', limit.algorithm, '", as ', text, " is: it is older than who wrote the plate.")
    end
    limit.text = text
  end
end

-- The first rule that is split among as many as there are at the moment; nil if none is.
local function split_rule(rules)
  for _, rule in ipairs(rules) do
    if rule.where == "split" and not rule.nodes then return rule end
  end
end

-- Count and rank as one text.
local function place_text(count, rank) return count .. ":" .. tostring(rank) end

-- Whether a plate was compiled for another number of members, or another rank, than there is now.
function M.outdated(plate, chosen)
  return plate.split ~= nil and plate.split_by ~= place_text(chosen.place(plate.split))
end

-- `chosen`: prefix, fallback, deadline (seconds), only_here (there is no Redis), place (a function of a rule: among how
-- many its limit is split, and which of them this is), refuses (a function of a limit that is decided here: a
-- sentence, or nil).
function M.compile(text, chosen)
  local plate = json.decode(text)
  if type(plate) ~= "table" or not plate.rules or not plate.limits then
    fail("This is no plate: a rulebook is compiled by `headgate rules compile`, or published by `headgate rules push`.")
  end
  if plate.headers and not headers.known(plate.headers) then fail('"', plate.headers, '" is no form of headers.') end
  plate.terms = plate.terms or {}
  with_texts(plate.limits)
  local met, choices = match.compile(plate, chosen.crc32)
  local split = split_rule(plate.rules)
  local split_by = split and place_text(chosen.place(split))
  local hands, rules = {}, {}
  for i, rule in ipairs(plate.rules) do
    local words = plate.terms[rule.name] or {}
    rule.refusal = refusal.compile(rule.refuse, rule.name)
    rules[rule.name] = rule
    bind_all(plate, rule, choices[i].limits, words.names, { "live", "shadow" }, hands, chosen)
    bind_all(plate, rule, choices[i].candidates, words.candidate_names, { "candidate" }, hands, chosen)
  end
  return {
    note = chosen.only_here and unheard(plate.rules) or nil,
    warnings = type(plate.warnings) == "table" and plate.warnings or {},
    split = split, split_by = split_by, met = met, hands = hands, rules = rules, headers = plate.headers or "draft-11",
    limits = plate.limits, zones = plate.zones or {}, scripts = plate.scripts or {}, texts = plate.texts or {},
  }
end

return M
