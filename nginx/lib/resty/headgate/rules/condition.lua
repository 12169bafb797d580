-- Compiles conditions: tests on a call's attributes, joined by all, any and not. The twin of rules/condition.py.
--
-- A condition becomes `match`, a function of attributes: it returns them, with the captures of a path laid over them,
-- or nil if the condition does not hold. The meaning of a text depends on the attribute: a path pattern for `path`, a
-- network for `address`, case-insensitive for `method` and `host`, a glob for everything else.
--
-- Laws: of the patterns of one test the first that matches captures, of `any` the first condition that holds, and under
-- `not` none captures; within `all` capturing conditions come first, so that the others see their captures; an absent
-- or empty attribute passes no test but false.

local compose = require "resty.headgate.compose_functions"
local ip_networks = require "resty.headgate.rules.ip_networks"
local memoize = require "resty.headgate.memoize"
local pattern = require "resty.headgate.rules.pattern"
local strings = require "resty.headgate.text.strings"

local M = {}

local segments_of = memoize(strings.segments)

local FOLDS = { method = string.upper, host = string.lower }

local function present(value) return value ~= nil and value ~= "" end

-- Returns a condition without captures, from a predicate.
local function without_captures(holds)
  return { match = function(attributes) return holds(attributes) and attributes or nil end }
end

-- Returns a function that lays the captured segments over the attributes.
local function capture_function(positions)
  local first, position = next(positions)
  if next(positions, first) == nil then
    return function(segments, attributes)
      local captured = { [first] = segments[position > 0 and position or #segments + 1 + position] }
      return setmetatable(captured, { __index = attributes })
    end
  end
  return function(segments, attributes)
    local captured = {}
    for name, index in pairs(positions) do
      captured[name] = segments[index > 0 and index or #segments + 1 + index]
    end
    return setmetatable(captured, { __index = attributes })
  end
end

local function path_matcher(text)
  local path_pattern = pattern.path(text)
  local matches, capture = path_pattern.matches, path_pattern.captures and capture_function(path_pattern.captures)
  return function(attributes)
    local path = attributes.path
    if not present(path) then return nil end
    local segments = segments_of(path)
    if not matches(segments) then return nil end
    return capture and capture(segments, attributes) or attributes
  end, capture ~= nil
end

local function path_test(texts)
  local patterns, captures = {}, false
  for i, text in ipairs(texts) do
    local captured
    patterns[i], captured = path_matcher(text)
    captures = captures or captured
  end
  return { match = compose.first(patterns), captures = captures }
end

local function text_test(attribute, texts)
  local fold = FOLDS[attribute]
  local globs = {}
  for i, text in ipairs(texts) do globs[i] = pattern.glob(fold and fold(text) or text) end
  local matches = compose.first(globs)
  return without_captures(function(attributes)
    local value = attributes[attribute]
    return present(value) and matches(value)
  end)
end

-- Compiles the test of one attribute: a text, one of a list, present (true) or absent (false).
function M.test(attribute, expected)
  if type(expected) == "boolean" then
    return without_captures(function(attributes) return present(attributes[attribute]) == expected end)
  end
  local texts = type(expected) == "table" and expected or { expected }
  if attribute == "path" then return path_test(texts) end
  if attribute == "address" then
    local contains = ip_networks.compile(texts)
    return without_captures(function(attributes)
      return present(attributes.address) and contains(attributes.address)
    end)
  end
  return text_test(attribute, texts)
end

local function compile_list(list)
  local conditions, captures = {}, false
  for i, spec in ipairs(list) do
    conditions[i] = M.compile(spec)
    captures = captures or conditions[i].captures or false
  end
  return conditions, captures
end

-- Returns the conditions, with those of every nested `all`; capturing ones before the others.
local function in_order(conditions)
  local capturing_first, others = {}, {}
  for _, condition in ipairs(conditions) do
    for _, inner in ipairs(condition.all or { condition }) do
      local list = inner.captures and capturing_first or others
      list[#list + 1] = inner
    end
  end
  local captures = #capturing_first > 0
  for _, condition in ipairs(others) do capturing_first[#capturing_first + 1] = condition end
  return capturing_first, captures
end

local function match_functions(conditions)
  local functions = {}
  for i, condition in ipairs(conditions) do functions[i] = condition.match end
  return functions
end

-- Combines conditions that must all hold. They are kept, for an `all` around this one.
local function all_of(conditions)
  local ordered, captures = in_order(conditions)
  return { match = compose.pipeline(match_functions(ordered)), captures = captures, all = ordered }
end

local function any_of(list)
  local conditions, captures = compile_list(list)
  return { match = compose.first(match_functions(conditions)), captures = captures }
end

local function none_of(spec)
  local condition = M.compile(spec)
  return without_captures(function(attributes) return condition.match(attributes) == nil end)
end

local function sorted_names(mapping)
  local names = {}
  for name in pairs(mapping) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- Compiles a condition of a canonical document: a mapping, of which every entry must hold.
function M.compile(spec)
  local conditions = {}
  for _, name in ipairs(sorted_names(spec)) do
    local value = spec[name]
    if name == "all" then
      for _, condition in ipairs((compile_list(value))) do conditions[#conditions + 1] = condition end
    elseif name == "any" then
      conditions[#conditions + 1] = any_of(value)
    elseif name == "not" then
      conditions[#conditions + 1] = none_of(value)
    else
      conditions[#conditions + 1] = M.test(name, value)
    end
  end
  return #conditions == 1 and conditions[1] or all_of(conditions)
end

return M
