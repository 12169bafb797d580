-- The index: of a thousand rules, the few that a request may concern. In small what rules/matching/rule_index.py is.
--
-- A rule that must find one of a few whole texts in an attribute waits under each of them; one that must find a path
-- waits under the plain segments that its pattern begins with. Of all the tests by which it could be placed it is
-- placed by the one that fewest others share. What cannot be placed is always a candidate.
--
-- Laws: whoever is not found would not have held; who is found comes once, in the order of the book (tests/nginx:
-- the vectors, and books at random).

local remembering = require "resty.headgate.memoize"

local M = {}

local DEEPEST = 4 -- segments of a path by which a rule is placed

local FOLDS = { host = string.lower, method = string.upper }

-- The spot of a whole text; nil of a glob.
local function whole(attribute, text)
  if string.find(text, "*", 1, true) then return nil end
  local fold = FOLDS[attribute]
  return attribute .. "\0" .. (fold and fold(text) or text)
end

-- The spot of a path pattern: the plain segments at its front; nil if it begins with none.
local function front(text)
  local kept = {}
  for segment in string.gmatch(text, "[^/]+") do
    if #kept == DEEPEST or string.find(segment, "[*{]") then break end
    kept[#kept + 1] = segment
  end
  return #kept > 0 and "path\0/" .. table.concat(kept, "/") or nil
end

-- Where a test may be waited for: a list of spots, nil if anywhere.
local function spots_of(attribute, wanted)
  if type(wanted) == "boolean" or attribute == "address" then return nil end
  if not (attribute == "path" or attribute == "host" or string.find(attribute, ".", 1, true)) then return nil end
  local spots = {}
  for i, text in ipairs(type(wanted) == "table" and wanted or { wanted }) do
    spots[i] = attribute == "path" and front(text) or attribute ~= "path" and whole(attribute, text) or nil
    if not spots[i] then return nil end
  end
  return spots
end

-- All tests that a condition cannot do without.
local function tests_of(said, found)
  for attribute, wanted in pairs(said) do
    if attribute == "all" then
      for _, inner in ipairs(wanted) do tests_of(inner, found) end
    elseif attribute ~= "any" and attribute ~= "not" then
      local spots = spots_of(attribute, wanted)
      if spots then found[#found + 1] = { attribute = attribute, spots = spots } end
    end
  end
  return found
end

local function crowd_of(test, crowds)
  local most = 0
  for _, spot in ipairs(test.spots) do most = math.max(most, crowds[spot]) end
  return most
end

-- Each entry has its number; `conditions[number]` is its `when`, or nil.
local function placed(entries, conditions)
  local tests, crowds = {}, {}
  for number in ipairs(entries) do
    tests[number] = conditions[number] and tests_of(conditions[number], {}) or {}
    for _, test in ipairs(tests[number]) do
      for _, spot in ipairs(test.spots) do crowds[spot] = (crowds[spot] or 0) + 1 end
    end
  end
  local spots, attributes, always = {}, {}, {}
  for number, entry in ipairs(entries) do
    local least
    for _, test in ipairs(tests[number]) do
      if not least or crowd_of(test, crowds) < crowd_of(least, crowds) then least = test end
    end
    if not least then
      always[#always + 1] = entry
    else
      attributes[least.attribute] = true
      for _, spot in ipairs(least.spots) do
        spots[spot] = spots[spot] or {}
        if spots[spot][#spots[spot]] ~= entry then table.insert(spots[spot], entry) end
      end
    end
  end
  return spots, attributes, always
end

local function by_number(a, b) return a.number < b.number end

-- Lists of entries as one, in the order of the book, each entry once.
local function merged(lists)
  local found, last = {}, nil
  for _, list in ipairs(lists) do
    for _, entry in ipairs(list) do found[#found + 1] = entry end
  end
  table.sort(found, by_number)
  local kept = {}
  for _, entry in ipairs(found) do
    if entry ~= last then kept[#kept + 1] = entry end
    last = entry
  end
  return kept
end

local function along(spots, path, always)
  local lists, at = { #always > 0 and always or nil }, 1
  for _ = 1, DEEPEST do
    local slash = string.find(path, "/", at + 1, true)
    lists[#lists + 1] = spots["path\0" .. (slash and string.sub(path, 1, slash - 1) or path)]
    if not slash then break end
    at = slash
  end
  return #lists < 2 and (lists[1] or always) or merged(lists)
end

-- A function of attributes that gives the entries to be looked at.
function M.of(entries, conditions)
  local spots, attributes, always = placed(entries, conditions)
  local others = {}
  for attribute in pairs(attributes) do
    if attribute ~= "path" then others[#others + 1] = attribute end
  end
  local function everywhere() return always end
  local by_path = everywhere
  if attributes.path then
    local found = remembering(function(path) return along(spots, path, always) end)
    by_path = function(seen)
      local path = seen.path
      return path and found(path) or always
    end
  end
  if #others == 0 then return by_path end
  return function(seen)
    local lists = { by_path(seen) }
    for _, attribute in ipairs(others) do
      local value = seen[attribute]
      if value then lists[#lists + 1] = spots[attribute .. "\0" .. value] end
    end
    return #lists == 1 and lists[1] or merged(lists)
  end
end

return M
