-- Indexes rules: of a thousand rules, finds the few that a request may match. A small version of
-- rules/matching/rule_index.py.
--
-- A rule that needs an attribute to equal one of a few texts is indexed under each of them; one that needs a path is
-- indexed under the literal segments that its pattern begins with. Of all tests by which a rule could be indexed, it is
-- indexed by the one that the fewest others share. A rule that cannot be indexed is always a candidate.
--
-- Laws: a rule that is not found would not match; a rule that is found appears once, in the order of the rulebook
-- (tests/nginx: the vectors, and random rulebooks).

local memoize = require "resty.headgate.memoize"

local M = {}

local MAX_PATH_SEGMENTS = 4 -- of a pattern, by which a rule is indexed

local FOLDS = { host = string.lower, method = string.upper }

-- Returns the index key of a literal text; nil for a glob.
local function exact_key(attribute, text)
  if string.find(text, "*", 1, true) then return nil end
  local fold = FOLDS[attribute]
  return attribute .. "\0" .. (fold and fold(text) or text)
end

-- Returns the index key of a path pattern: the literal segments at its front; nil if it begins with none.
local function path_key(text)
  local segments = {}
  for segment in string.gmatch(text, "[^/]+") do
    if #segments == MAX_PATH_SEGMENTS or string.find(segment, "[*{]") then break end
    segments[#segments + 1] = segment
  end
  return #segments > 0 and "path\0/" .. table.concat(segments, "/") or nil
end

-- Returns the index keys of a test; nil if it cannot be indexed.
local function index_keys(attribute, expected)
  if type(expected) == "boolean" or attribute == "address" then return nil end
  if not (attribute == "path" or attribute == "host" or string.find(attribute, ".", 1, true)) then return nil end
  local keys = {}
  for i, text in ipairs(type(expected) == "table" and expected or { expected }) do
    keys[i] = attribute == "path" and path_key(text) or attribute ~= "path" and exact_key(attribute, text) or nil
    if not keys[i] then return nil end
  end
  return keys
end

-- Returns all indexable tests that a condition requires.
local function indexable_tests(condition, result)
  for attribute, expected in pairs(condition) do
    if attribute == "all" then
      for _, inner in ipairs(expected) do indexable_tests(inner, result) end
    elseif attribute ~= "any" and attribute ~= "not" then
      local keys = index_keys(attribute, expected)
      if keys then result[#result + 1] = { attribute = attribute, keys = keys } end
    end
  end
  return result
end

local function largest_count(test, counts)
  local largest = 0
  for _, key in ipairs(test.keys) do largest = math.max(largest, counts[key]) end
  return largest
end

-- Builds the index. Each entry has its number; `conditions[number]` is its `when`, or nil.
local function build_index(entries, conditions)
  local tests, counts = {}, {}
  for number in ipairs(entries) do
    tests[number] = conditions[number] and indexable_tests(conditions[number], {}) or {}
    for _, test in ipairs(tests[number]) do
      for _, key in ipairs(test.keys) do counts[key] = (counts[key] or 0) + 1 end
    end
  end
  local by_key, attributes, unindexed = {}, {}, {}
  for number, entry in ipairs(entries) do
    local best
    for _, test in ipairs(tests[number]) do
      if not best or largest_count(test, counts) < largest_count(best, counts) then best = test end
    end
    if not best then
      unindexed[#unindexed + 1] = entry
    else
      attributes[best.attribute] = true
      for _, key in ipairs(best.keys) do
        by_key[key] = by_key[key] or {}
        if by_key[key][#by_key[key]] ~= entry then table.insert(by_key[key], entry) end
      end
    end
  end
  return by_key, attributes, unindexed
end

local function precedes(a, b) return a.number < b.number end

-- Merges lists of entries, in the order of the rulebook, each entry once.
local function merge(lists)
  local result, last = {}, nil
  for _, list in ipairs(lists) do
    for _, entry in ipairs(list) do result[#result + 1] = entry end
  end
  table.sort(result, precedes)
  local unique = {}
  for _, entry in ipairs(result) do
    if entry ~= last then unique[#unique + 1] = entry end
    last = entry
  end
  return unique
end

local function entries_along_path(by_key, path, unindexed)
  local lists, slash_at = { #unindexed > 0 and unindexed or nil }, 1
  for _ = 1, MAX_PATH_SEGMENTS do
    local slash = string.find(path, "/", slash_at + 1, true)
    lists[#lists + 1] = by_key["path\0" .. (slash and string.sub(path, 1, slash - 1) or path)]
    if not slash then break end
    slash_at = slash
  end
  return #lists < 2 and (lists[1] or unindexed) or merge(lists)
end

-- Returns a function of attributes that returns the candidate entries.
function M.build(entries, conditions)
  local by_key, attributes, unindexed = build_index(entries, conditions)
  local other_attributes = {}
  for attribute in pairs(attributes) do
    if attribute ~= "path" then other_attributes[#other_attributes + 1] = attribute end
  end
  local function only_unindexed() return unindexed end
  local by_path = only_unindexed
  if attributes.path then
    local entries_of = memoize(function(path) return entries_along_path(by_key, path, unindexed) end)
    by_path = function(values)
      local path = values.path
      return path and entries_of(path) or unindexed
    end
  end
  if #other_attributes == 0 then return by_path end
  return function(values)
    local lists = { by_path(values) }
    for _, attribute in ipairs(other_attributes) do
      local value = values[attribute]
      if value then lists[#lists + 1] = by_key[attribute .. "\0" .. value] end
    end
    return #lists == 1 and lists[1] or merge(lists)
  end
end

return M
