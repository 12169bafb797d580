-- Conditions: tests on a call's attributes, joined by all, any and not. The twin of rules/condition.py.
--
-- A condition becomes `bound`, a function of attributes: it gives them back, with what a path captured laid over
-- them, or nil if it does not hold. How a text is meant depends on the attribute: a path pattern for `path`, a network
-- for `address`, without case for `method` and `host`, a glob for everything else.
--
-- Laws: of the patterns of one test the first that fits captures, of `any` the first part that holds, and under `not`
-- nothing does; of `all` what captures comes first, so that the others see it; an absent or empty attribute passes no
-- test but false.

local chain = require "resty.headgate.compose"
local json = require "resty.headgate.text.json"
local network = require "resty.headgate.rules.ip_networks"
local pattern = require "resty.headgate.rules.pattern"
local remembering = require "resty.headgate.memoize"
local split = require "resty.headgate.text.strings"

local M = {}

local segments_of = remembering(split.segments)

local FOLDS = { method = string.upper, host = string.lower }

local function present(value) return value ~= nil and value ~= "" end

-- A condition that captures nothing, from a function that says whether it holds.
local function plain(holds)
  return { bound = function(seen) return holds(seen) and seen or nil end }
end

-- What a row of segments captures, laid over what is seen.
local function capturing(places)
  local first, place = next(places)
  if next(places, first) == nil then
    return function(row, seen)
      return setmetatable({ [first] = row[place > 0 and place or #row + 1 + place] }, { __index = seen })
    end
  end
  return function(row, seen)
    local found = {}
    for name, at in pairs(places) do found[name] = row[at > 0 and at or #row + 1 + at] end
    return setmetatable(found, { __index = seen })
  end
end

local function path_bound(text)
  local one = pattern.path(text)
  local fits, capture = one.fits, one.captures and capturing(one.captures)
  return function(seen)
    local path = seen.path
    if not present(path) then return nil end
    local row = segments_of(path)
    if not fits(row) then return nil end
    return capture and capture(row, seen) or seen
  end, capture ~= nil
end

local function path_test(texts)
  local patterns, captures = {}, false
  for i, text in ipairs(texts) do
    local captured
    patterns[i], captured = path_bound(text)
    captures = captures or captured
  end
  return { bound = chain.first(patterns), captures = captures }
end

local function text_test(attribute, texts)
  local fold = FOLDS[attribute]
  local globs = {}
  for i, text in ipairs(texts) do globs[i] = pattern.glob(fold and fold(text) or text) end
  local matches = chain.first(globs)
  return plain(function(seen)
    local value = seen[attribute]
    return present(value) and matches(value)
  end)
end

-- One attribute, and what it must be: a text, one of a list, present (true) or absent (false).
function M.test(attribute, wanted)
  if type(wanted) == "boolean" then
    return plain(function(seen) return present(seen[attribute]) == wanted end)
  end
  local texts = type(wanted) == "table" and wanted or { wanted }
  if attribute == "path" then return path_test(texts) end
  if attribute == "address" then
    local among = network.networks(texts)
    return plain(function(seen) return present(seen.address) and among(seen.address) end)
  end
  return text_test(attribute, texts)
end

local function compiled(list)
  local parts, captures = {}, false
  for i, said in ipairs(list) do
    parts[i] = M.compile(said)
    captures = captures or parts[i].captures or false
  end
  return parts, captures
end

-- Its parts, and those of every `all` among them; those that capture before the others.
local function in_order(parts)
  local front, back = {}, {}
  for _, part in ipairs(parts) do
    for _, inner in ipairs(part.all or { part }) do
      local list = inner.captures and front or back
      list[#list + 1] = inner
    end
  end
  local captures = #front > 0
  for _, part in ipairs(back) do front[#front + 1] = part end
  return front, captures
end

local function bounds_of(parts)
  local found = {}
  for i, part in ipairs(parts) do found[i] = part.bound end
  return found
end

-- `all` keeps its parts, for an `all` around this one.
local function every(parts)
  local ordered, captures = in_order(parts)
  return { bound = chain.through(bounds_of(ordered)), captures = captures, all = ordered }
end

local function some(list)
  local parts, captures = compiled(list)
  return { bound = chain.first(bounds_of(parts)), captures = captures }
end

local function none(said)
  local part = M.compile(said)
  return plain(function(seen) return part.bound(seen) == nil end)
end

-- A condition of a canonical document: a mapping, of which every entry must hold.
function M.compile(said)
  local parts = {}
  for _, name in ipairs(json.names(said)) do
    local value = said[name]
    if name == "all" then
      for _, part in ipairs((compiled(value))) do parts[#parts + 1] = part end
    elseif name == "any" then
      parts[#parts + 1] = some(value)
    elseif name == "not" then
      parts[#parts + 1] = none(value)
    else
      parts[#parts + 1] = M.test(name, value)
    end
  end
  return #parts == 1 and parts[1] or every(parts)
end

return M
