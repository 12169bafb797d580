-- Splits and strips texts. Separators are plain texts, never patterns.
--
-- Law: the pieces, joined by the separator, are the text again.

local M = {}

local find, sub = string.find, string.sub

function M.split(text, separator)
  local pieces, at = {}, 1
  while true do
    local from, to = string.find(text, separator, at, true)
    if not from then break end
    pieces[#pieces + 1] = string.sub(text, at, from - 1)
    at = to + 1
  end
  pieces[#pieces + 1] = string.sub(text, at)
  return pieces
end

-- Returns the text before the first separator, and the text behind it: nil if there is no separator.
function M.cut(text, separator)
  local from, to = string.find(text, separator, 1, true)
  if not from then return text, nil end
  return string.sub(text, 1, from - 1), string.sub(text, to + 1)
end

-- Returns the segments of a path, without empty ones.
function M.segments(path)
  local segments, n, at = {}, 0, 1
  local stop = #path + 1
  while at < stop do
    local slash = find(path, "/", at, true) or stop
    if slash > at then
      n = n + 1
      segments[n] = sub(path, at, slash - 1)
    end
    at = slash + 1
  end
  return segments
end

-- Removes blanks at both ends, in two anchored steps, each linear: "^[ \t]*(.-)[ \t]*$" would take the square of a long
-- run of blanks.
function M.strip(text)
  local from = string.find(text, "[^ \t]")
  if not from then return "" end
  return M.strip_end(string.sub(text, from), " \t")
end

-- Removes any of these characters at the end.
function M.strip_end(text, characters)
  local last = #text
  while last > 0 and string.find(characters, string.sub(text, last, last), 1, true) do last = last - 1 end
  return string.sub(text, 1, last)
end

return M
