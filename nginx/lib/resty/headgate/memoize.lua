-- Memoizes a function of a text: it caches the results of up to a thousand short texts, then starts anew. The second
-- argument helps to compute a result, and does not change it.
--
-- Laws: the result is the function's; no client can fill memory with long texts, or with many.

local MAX_ENTRIES, MAX_TEXT_BYTES = 1000, 128

return function(compute)
  local cache, count = {}, 0
  return function(text, hint)
    local result = cache[text]
    if result ~= nil then return result end
    result = compute(text, hint)
    if result ~= nil and #text <= MAX_TEXT_BYTES then
      if count == MAX_ENTRIES then cache, count = {}, 0 end
      cache[text], count = result, count + 1
    end
    return result
  end
end
