-- Parses a duration such as 50ms, 1.5s or 10m. The twin of parse_span in limit_syntax.py. Pure.
--
-- Law (tests/nginx/engines/redis/test_url.py): accepts and refuses what Python accepts and refuses.

local find, floor, lower, match = string.find, math.floor, string.lower, string.match

local M = {}

local SECOND_US = 1000000
local DAY_US = 86400 * SECOND_US
local MAX_EXACT = 2 ^ 53
local ROUNDING = 1e-14 -- 1.1ms is 1100.0000000000002 us in doubles
local UNIT_US = {
  us = 1, microsecond = 1, ms = 1000, millisecond = 1000, s = SECOND_US, sec = SECOND_US, second = SECOND_US,
  m = 60 * SECOND_US, min = 60 * SECOND_US, minute = 60 * SECOND_US, h = 3600 * SECOND_US, hr = 3600 * SECOND_US,
  hour = 3600 * SECOND_US, d = DAY_US, day = DAY_US, w = 7 * DAY_US, week = 7 * DAY_US, month = 30 * DAY_US,
  y = 365 * DAY_US, year = 365 * DAY_US,
}

local PLURAL_UNIT_US = {} -- units that have a plural
for unit, us in pairs(UNIT_US) do
  if #unit > 2 or unit == "hr" then PLURAL_UNIT_US[unit] = us end
end

local function is_count(text)
  return text == "" or find(text, "^%d+$") ~= nil or find(text, "^%d*%.%d+$") ~= nil
end

local function not_positive(text)
  return '"' .. text .. '" must be more than 0. Write a number and a unit, such as 50ms, 30s or 10m.'
end

-- Returns microseconds; nil and a sentence if the text is no duration.
function M.parse(value)
  local text = match(value, "^%s*(.-)%s*$")
  local count, unit = match(lower(text), "^([%d.]*)%s*(%a+)$")
  local unit_us = unit and (UNIT_US[unit] or PLURAL_UNIT_US[match(unit, "^(.-)s?$")])
  if unit_us and is_count(count) then
    local duration_us = (count == "" and 1 or tonumber(count)) * unit_us
    if duration_us == 0 then return nil, not_positive(text) end
    local us = duration_us < MAX_EXACT and floor(duration_us + 0.5) or 0
    if us >= 1 and math.abs(duration_us - us) <= us * ROUNDING then return us end
    local bound = duration_us < MAX_EXACT and "a whole number of microseconds, at least one." or "at most 285 years."
    return nil, '"' .. text .. '" is not a length of time. Write a number and a unit, such as 50ms, 30s or 10m. '
      .. "A period is " .. bound
  end
  if text ~= "" and find(text, "^%d+%.?%d*$") and is_count(text) then
    if tonumber(text) == 0 then return nil, not_positive(text) end
    return nil, '"' .. text .. '" is not a length of time. It has no unit: write ' .. text .. "ms or " .. text .. "s."
  end
  return nil, '"' .. text .. '" is not a length of time. Write a number and a unit, such as 50ms, 30s or 10m.'
end

return M
