-- Patterns: paths as templates, everything else as globs. The twin of rules/pattern.py, where both are told.
--
--   /items/{sku}    one segment there, whatever it is, called sku
--   /img/*.png      one segment there that ends so
--   /api/**         any number of segments there, none too; once in a pattern
--
-- A glob is a text in which * stands for any text, also none. No text is ever taken for a Lua pattern.
--
-- Law: no pattern takes longer than its length times the text's, whatever the text is.

local split = require "resty.headgate.text.strings"

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

-- Whether the segments of a path from `offset` on are as these parts want them: a function of path and offset.
local function fitting(parts, from, to)
  if from > to then return function() return true end end
  local rest = from < to and fitting(parts, from + 1, to)
  if parts[from] == "*" or string.find(parts[from], "^{.*}$") then
    return rest and function(path, offset) return rest(path, offset + 1) end or function() return true end
  end
  local step = M.glob(parts[from])
  if not rest then return function(path, offset) return step(path[offset + 1]) end end
  return function(path, offset) return step(path[offset + 1]) and rest(path, offset + 1) end
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
  local head, tail = fitting(parts, 1, deep - 1), fitting(parts, deep + 1, #parts)
  local front, back = deep - 1, math.max(0, #parts - deep)
  local function fits(path)
    local spare = #path - front - back
    if spare < 0 or spare > 0 and deep > #parts then return false end
    return head(path, 0) and tail(path, #path - back)
  end
  return { fits = fits, captures = captures_of(parts, deep) }
end

return M
