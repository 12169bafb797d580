-- A pure function of a text that remembers some of its answers: of short texts, a thousand, then it starts anew.
--
-- Laws: it answers as the function does; nobody fills memory with long texts, or with many.

local KEPT, SHORT = 1000, 128

return function(make)
  local known, count = {}, 0
  return function(text)
    local found = known[text]
    if found ~= nil then return found end
    found = make(text)
    if found ~= nil and #text <= SHORT then
      if count == KEPT then known, count = {}, 0 end
      known[text], count = found, count + 1
    end
    return found
  end
end
