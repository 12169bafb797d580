-- Works out where the windows of a calendar begin and end. The twin of calendar.py.
--
-- A limit on days, weeks, months or years of a time zone is sent with six starts of windows in a row, the second of
-- which begins the window that holds now. A zone is a list of { from which epoch second on, seconds ahead of UTC }; the
-- first one also holds before, and the last for ever after.
--
--   { "1000", "0", start before, start of this one, and of the four that follow }      all of them texts
--
-- A day starts at the first instant at which its zone's date is that day or a later one. Mostly that is midnight; where
-- the clocks jump over midnight it is the jump, and a day that is skipped altogether is no window.
--
-- Laws (tests/nginx/rules/test_calendar.py):
--   - the numbers are those that Python sends, as long as the zone's list reaches;
--   - while now stays in the window, the result is the very same table (it is cached on the limit, as `windows`, and is
--     read only);
--   - a limit without a calendar has the numbers of its bundle at any time.

local M = {}

local SECOND_US, DAY_S = 1000000, 86400
local WINDOWS_BEFORE, WINDOWS_AFTER, STARTS_SENT = 3, 7, 6 -- more than are sent: days may be missing, dates turn back
local DAYS_BEFORE_MONTH = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334 }

local floor = math.floor

-- Returns the first day of a year. Days are counted from 1 January 1970.
local function new_year(year)
  local leaps = floor((year - 1969) / 4) - floor((year - 1901) / 100) + floor((year - 1601) / 400)
  return (year - 1970) * 365 + leaps
end

local function year_of(day)
  local year = 1970 + floor(day / 366)
  while new_year(year + 1) <= day do year = year + 1 end
  return year
end

-- Returns the first day of a month; months are counted from January of the year 0.
local function new_month(count)
  local year = floor(count / 12)
  local month, start = count - year * 12 + 1, new_year(year)
  local leap = month > 2 and new_year(year + 1) - start == 366
  return start + DAYS_BEFORE_MONTH[month] + (leap and 1 or 0)
end

local function month_of(day)
  local count = year_of(day) * 12
  while new_month(count + 1) <= day do count = count + 1 end
  return count
end

-- Returns the first day of the window that lies `step` windows after the one that holds the day.
local first_day = {
  day = function(day, step) return day + step end,
  week = function(day, step) return day - (day + 3) % 7 + 7 * step end, -- the epoch began on a Thursday
  month = function(day, step) return new_month(month_of(day) + step) end,
  year = function(day, step) return new_year(year_of(day) + step) end,
}

local function offset_at(zone, second)
  local i = #zone
  while i > 1 and zone[i][1] > second do i = i - 1 end
  return zone[i][2]
end

-- Returns the first instant at which the zone's date is the day or later: it lies in the first period of one offset
-- whose local time goes beyond that midnight.
local function start_of(zone, day)
  local midnight, last = day * DAY_S, #zone
  for i = 1, last do
    local from, offset = zone[i][1], zone[i][2]
    if i == last or midnight < zone[i + 1][1] + offset then
      local start = midnight - offset
      return i > 1 and start < from and from or start
    end
  end
end

local function starts_around(first, zone, second)
  local today, starts = floor((second + offset_at(zone, second)) / DAY_S), {}
  for step = -WINDOWS_BEFORE, WINDOWS_AFTER do
    local start = start_of(zone, first(today, step))
    if start ~= starts[#starts] then starts[#starts + 1] = start end
  end
  return starts
end

local function windows_around(limit, zone, now_us)
  local second = floor(now_us / SECOND_US)
  local starts, current = starts_around(first_day[limit.calendar.unit], zone, second), 1
  while starts[current + 1] <= second do current = current + 1 end
  local numbers = { limit.numbers[1], limit.numbers[2] }
  for i = 1, STARTS_SENT do numbers[2 + i] = string.format("%.0f", starts[current - 2 + i] * SECOND_US) end
  return { from_us = starts[current] * SECOND_US, until_us = starts[current + 1] * SECOND_US, numbers = numbers }
end

-- Returns the numbers that are sent for a limit at that time.
function M.numbers(limit, zones, now_us)
  local calendar = limit.calendar
  if not calendar then return limit.numbers end
  local windows = limit.windows
  if windows and windows.from_us <= now_us and now_us < windows.until_us then return windows.numbers end
  local zone = zones[calendar.zone]
  if not zone then
    error('The bundle does not say when the clocks of "' .. calendar.zone .. '" change, which the limit '
      .. (limit.text or "") .. " asks for. Compile or push the rulebook again.", 0)
  end
  windows = windows_around(limit, zone, now_us)
  limit.windows = windows
  return windows.numbers
end

return M
