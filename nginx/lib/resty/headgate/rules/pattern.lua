-- Compiles patterns: templates of paths, and globs. The twin of rules/pattern.py, where both are described.
--
--   /items/{sku}    one segment there, whatever it is, called sku
--   /img/*.png      one segment there that ends so
--   /api/**         any number of segments there, none too; once in a pattern
--
-- In a glob, * matches any text, also none. No text is ever used as a Lua pattern.
--
-- Law: matching takes at most the pattern's length times the text's, whatever the text is.

local strings = require "resty.headgate.text.strings"

local M = {}

-- Compiles a glob into a predicate of texts.
function M.glob(pattern)
  local pieces = strings.split(pattern, "*")
  if #pieces == 1 then return function(text) return text == pattern end end
  local first, last = table.remove(pieces, 1), table.remove(pieces)
  return function(text)
    local position, last_start = #first + 1, #text - #last
    if last_start < #first or string.sub(text, 1, #first) ~= first or string.sub(text, last_start + 1) ~= last then
      return false
    end
    for _, piece in ipairs(pieces) do -- the leftmost match of each leaves the most text for the others
      local _, piece_end = string.find(text, piece, position, true)
      if not piece_end or piece_end > last_start then return false end
      position = piece_end + 1
    end
    return true
  end
end

-- Returns a predicate of segments and an offset: whether the segments from the offset on match these pieces.
local function segments_matcher(pieces, from, to)
  if from > to then return function() return true end end
  local match_rest = from < to and segments_matcher(pieces, from + 1, to)
  if pieces[from] == "*" or string.find(pieces[from], "^{.*}$") then
    if not match_rest then return function() return true end end
    return function(segments, offset) return match_rest(segments, offset + 1) end
  end
  local match_segment = M.glob(pieces[from])
  if not match_rest then return function(segments, offset) return match_segment(segments[offset + 1]) end end
  return function(segments, offset) return match_segment(segments[offset + 1]) and match_rest(segments, offset + 1) end
end

-- Returns the positions of captures: from the front, or behind ** from the end (-1 is the last).
local function captures_of(pieces, wildcard_at)
  local positions
  for i, piece in ipairs(pieces) do
    local name = string.match(piece, "^{(.*)}$")
    if name then
      positions = positions or {}
      positions[name] = i < wildcard_at and i or i - #pieces - 1
    end
  end
  return positions
end

-- Compiles a path pattern: `matches` is a predicate of segments, `captures` the positions of captures, if any.
function M.path(pattern)
  local pieces = strings.segments(pattern)
  local wildcard_at = #pieces + 1
  for i, piece in ipairs(pieces) do
    if piece == "**" then wildcard_at = i end
  end
  local match_head = segments_matcher(pieces, 1, wildcard_at - 1)
  local match_tail = segments_matcher(pieces, wildcard_at + 1, #pieces)
  local before, after = wildcard_at - 1, math.max(0, #pieces - wildcard_at)
  local function matches(segments)
    local extra = #segments - before - after
    if extra < 0 or extra > 0 and wildcard_at > #pieces then return false end
    return match_head(segments, 0) and match_tail(segments, #segments - after)
  end
  return { matches = matches, captures = captures_of(pieces, wildcard_at) }
end

return M
