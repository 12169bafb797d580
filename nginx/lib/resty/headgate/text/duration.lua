-- A length of time as text, such as 50ms, 1.5s or 10m. The twin of parse_span in text.py. Pure.
--
-- Law (tests/nginx/engines/redis/test_url.py): what is read, and what is refused, is what Python reads and refuses.

local find, floor, lower, match = string.find, math.floor, string.lower, string.match

local M = {}

local SECOND = 1000000
local DAY = 86400 * SECOND
local EXACT = 2 ^ 53
local ROUNDING = 1e-14 -- 1.1ms is 1100.0000000000002 us in doubles
local UNITS = {
  us = 1, microsecond = 1, ms = 1000, millisecond = 1000, s = SECOND, sec = SECOND, second = SECOND,
  m = 60 * SECOND, min = 60 * SECOND, minute = 60 * SECOND, h = 3600 * SECOND, hr = 3600 * SECOND,
  hour = 3600 * SECOND, d = DAY, day = DAY, w = 7 * DAY, week = 7 * DAY, month = 30 * DAY, y = 365 * DAY,
  year = 365 * DAY,
}

local WORDS = {} -- have a plural
for unit, us in pairs(UNITS) do
  if #unit > 2 or unit == "hr" then WORDS[unit] = us end
end

local function is_count(text)
  return text == "" or find(text, "^%d+$") ~= nil or find(text, "^%d*%.%d+$") ~= nil
end

local function nothing(text)
  return '"' .. text .. '" must be more than 0. Write a number and a unit, such as 50ms, 30s or 10m.'
end

-- In microseconds; nil and a sentence if it is none.
function M.parse(given)
  local text = match(given, "^%s*(.-)%s*$")
  local count, unit = match(lower(text), "^([%d.]*)%s*(%a+)$")
  local size = unit and (UNITS[unit] or WORDS[match(unit, "^(.-)s?$")])
  if size and is_count(count) then
    local length = (count == "" and 1 or tonumber(count)) * size
    if length == 0 then return nil, nothing(text) end
    local us = length < EXACT and floor(length + 0.5) or 0
    if us >= 1 and math.abs(length - us) <= us * ROUNDING then return us end
    return nil, '"' .. text .. '" is not a length of time. Write a number and a unit, such as 50ms, 30s or 10m. '
      .. "A period is " .. (length < EXACT and "a whole number of microseconds, at least one." or "at most 285 years.")
  end
  if text ~= "" and find(text, "^%d+%.?%d*$") and is_count(text) then
    if tonumber(text) == 0 then return nil, nothing(text) end
    return nil, '"' .. text .. '" is not a length of time. It has no unit: write ' .. text .. "ms or " .. text .. "s."
  end
  return nil, '"' .. text .. '" is not a length of time. Write a number and a unit, such as 50ms, 30s or 10m.'
end

return M
