-- Splits and strips texts, and finds their characters. Separators are plain texts, never patterns.
--
-- Laws: the pieces, joined by the separator, are the text again; a byte belongs to a character exactly where Python's
-- strict UTF-8 decoder says so (tests/nginx/rules/test_match_vectors.py).

local M = {}

local find, sub = string.find, string.sub

-- UTF-8 beyond ASCII: no overlong forms, no surrogates, nothing above U+10FFFF.
local CHARACTERS = {
  "^[\194-\223][\128-\191]", "^\224[\160-\191][\128-\191]", "^[\225-\236\238\239][\128-\191][\128-\191]",
  "^\237[\128-\159][\128-\191]", "^\240[\144-\191][\128-\191][\128-\191]",
  "^[\241-\243][\128-\191][\128-\191][\128-\191]", "^\244[\128-\143][\128-\191][\128-\191]",
}

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

-- Returns how many bytes the character has that begins here; nil if none does.
function M.character_size(text, at)
  if string.byte(text, at) < 128 then return 1 end
  for _, character in ipairs(CHARACTERS) do
    local _, last = find(text, character, at)
    if last then return last - at + 1 end
  end
end

-- Returns the number of characters of a text; a byte that is none counts as one.
function M.count_characters(text)
  local count, at = 0, 1
  while at <= #text do
    count, at = count + 1, at + (M.character_size(text, at) or 1)
  end
  return count
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
