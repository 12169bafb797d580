-- Patterns: paths as templates, everything else as globs. The twin of rules/pattern.py, where both are told.
--
--   /items/{sku}    one segment there, whatever it is, called sku
--   /img/*.png      one segment there that ends so
--   /api/**         any number of segments there, none too; once in a pattern
--
-- A glob is a text in which * stands for any text, also none. No text is ever taken for a Lua pattern.
--
-- Law: no pattern takes longer than its length times the text's, whatever the text is.

local split = require "resty.headgate.split"

local M = {}

-- A glob as a function of texts.
function M.glob(text)
  local parts = split.split(text, "*")
  if #parts == 1 then return function(given) return given == text end end
  local first, last = table.remove(parts, 1), table.remove(parts)
  return function(given)
    local at, stop = #first + 1, #given - #last
    if stop < #first or string.sub(given, 1, #first) ~= first or string.sub(given, stop + 1) ~= last then
      return false
    end
    for _, part in ipairs(parts) do -- the leftmost place of each leaves the most room for the others
      local _, to = string.find(given, part, at, true)
      if not to or to > stop then return false end
      at = to + 1
    end
    return true
  end
end

-- Each segment is a step: a glob, or true for whatever it is.
local function steps_of(parts, from, to)
  local steps = {}
  for i = from, to do
    local whatever = parts[i] == "*" or string.find(parts[i], "^{.*}$")
    steps[#steps + 1] = whatever and true or M.glob(parts[i])
  end
  return steps
end

local function fit(steps, path, offset)
  for i, step in ipairs(steps) do
    if step ~= true and not step(path[offset + i]) then return false end
  end
  return true
end

-- Where names stand: counted from the front, or behind ** from the end (-1 is the last).
local function captures_of(parts, deep)
  local places
  for i, part in ipairs(parts) do
    local name = string.match(part, "^{(.*)}$")
    if name then
      places = places or {}
      places[name] = i < deep and i or i - #parts - 1
    end
  end
  return places
end

-- A path pattern: `fits` says whether a row of segments is meant, `captures` where its names stand in it, if any.
function M.path(text)
  local parts = split.segments(text)
  local deep = #parts + 1
  for i, part in ipairs(parts) do
    if part == "**" then deep = i end
  end
  local head, tail = steps_of(parts, 1, deep - 1), steps_of(parts, deep + 1, #parts)
  local function fits(path)
    local spare = #path - #head - #tail
    if spare < 0 or spare > 0 and deep > #parts then return false end
    return fit(head, path, 0) and fit(tail, path, #path - #tail)
  end
  return { fits = fits, captures = captures_of(parts, deep) }
end

return M
