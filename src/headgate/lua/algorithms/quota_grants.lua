-- Quota grants: the twin of algorithms/quota_grants.py, which tells their story and their laws.
--
-- A ledger stays the text that is stored: of most holders it parses three numbers, and keeps their lines.

local floor, max, min = math.floor, math.max, math.min
local find, format, match, sub = string.find, string.format, string.match, string.sub
local M = { width = 1 }

local ALL_GRANT_UNITS, MAX_HOLDERS, MAX_GRANTS_PER_HOLDER, DEPARTED = 1081080000, 1000, 4, -1
local SWING_US = 100000

-- Returns the instant that a ledger is decided as of: now, or that of its last writing if the clock swings.
local function as_at(text, now_us)
  local stamp_us = tonumber(text and match(text, "^%d+")) or now_us
  return stamp_us > now_us and stamp_us <= now_us + SWING_US and stamp_us or now_us
end

-- Returns grant units and ends, in turn, of the grants that have not ended; and whether all is unchanged.
local function active_grants(text, back_us, now_us)
  local grants, unchanged = {}, back_us == 0
  for grant_units, end_us in string.gmatch(text, "(%d+) (%d+)") do
    end_us = end_us - back_us
    if end_us > now_us then
      grants[#grants + 1] = tonumber(grant_units)
      grants[#grants + 1] = end_us
    else
      unchanged = false
    end
  end
  return grants, unchanged
end

local function format_line(name, demand, grants)
  local numbers = {}
  for i = 1, #grants do numbers[i] = format("%.0f", grants[i]) end
  return format("%s %.0f %s\n", name, demand, table.concat(numbers, " "))
end

-- Returns the part of a ledger that still counts, also after the clock was set back.
--   text, body         as it is stored, and where the holders' lines begin; `unchanged` if all of them still count
--   demands            by rank; likewise firsts and lasts, the ends of a line, and lines, those that changed
--   granted, dead_us   the sum of all largest grants, and when the last grant ends
--   rank, largest      of the holder of that name; nil, 0 if it is not there
-- nil where the text cannot be parsed.
local function read_ledger(text, now_us, name)
  local demands, firsts, lasts, lines = {}, {}, {}, {}
  local ledger = { text = text or "", body = 1, unchanged = true,
    listening_until_us = 0, granted = 0, dead_us = 0, largest = 0 }
  ledger.demands, ledger.firsts, ledger.lasts, ledger.lines, ledger.count = demands, firsts, lasts, lines, 0
  if not text then return ledger end
  local stamp, listening_until, start = match(text, "^(%d+) (%d+)\n()")
  if not start then return nil end
  local back_us = max(0, stamp - now_us)
  ledger.body, ledger.listening_until_us = start, max(0, listening_until - back_us)
  local name_start = find(text, "\n" .. name .. " ", 1, true)
  local count, granted, dead_us = 0, 0, ledger.listening_until_us
  while true do
    local first, last, wants, grant_units, end_us, more = find(text, "^%S+ (%S+) (%d+) (%d+)([^\n]*)\n", start)
    if not first then break end
    local changed
    if more == "" and back_us == 0 then
      end_us = tonumber(end_us)
      grant_units = end_us > now_us and tonumber(grant_units)
    else
      local grants, unchanged = active_grants(grant_units .. " " .. end_us .. more, back_us, now_us)
      grant_units, end_us = grants[1], grants[#grants]
      if grant_units and not unchanged then changed = format_line(match(text, "^%S+", first), wants, grants) end
    end
    if grant_units then
      count = count + 1
      demands[count], firsts[count], lasts[count], lines[count] = tonumber(wants), first, last, changed
      granted = granted + grant_units
      if end_us > dead_us then dead_us = end_us end
      if name_start and first == name_start + 1 then ledger.rank, ledger.largest = count, grant_units end
    end
    if changed or not grant_units then ledger.unchanged = false end
    start = last + 1
  end
  if start <= #text then return nil end
  ledger.count, ledger.granted, ledger.dead_us = count, granted, dead_us
  return ledger
end

local function line_of(ledger, rank)
  return ledger.lines[rank] or sub(ledger.text, ledger.firsts[rank], ledger.lasts[rank])
end

-- Returns the stored form of a ledger, with another line in that rank, or with one more.
local function write_ledger(ledger, now_us, rank, new)
  local start, text = format("%.0f %.0f\n", now_us, ledger.listening_until_us), ledger.text
  if ledger.unchanged then
    local first, last = ledger.firsts[rank] or #text + 1, ledger.lasts[rank] or #text
    return start .. sub(text, ledger.body, first - 1) .. new .. sub(text, last + 1)
  end
  local lines = {}
  for i = 1, ledger.count do lines[i] = i == rank and new or line_of(ledger, i) end
  if rank > ledger.count then lines[rank] = new end
  return start .. table.concat(lines)
end

-- Returns the demand to store for a holder that reports this.
function M.damped_demand(before, wants)
  if before - floor(before / 4) <= wants and wants <= before then return before end
  return min(ALL_GRANT_UNITS, wants + floor((wants + 7) / 8))
end

-- Returns the level above which no need is met, how many of those get one unit more, and the rest; -1: all are met.
local function level_of(needs)
  local count, unused = #needs, ALL_GRANT_UNITS
  while count > 0 do
    local level, met, unmet = floor(unused / count), 0, 0
    for i = 1, #needs do
      if needs[i] > level then unmet = unmet + 1 else met = met + needs[i] end
    end
    if unmet == count then return level, unused - level * count, 0 end
    count, unused = unmet, ALL_GRANT_UNITS - met
  end
  return -1, 0, unused
end

-- Returns what the holder of this rank, counted from 1, should have, by the demands of all.
function M.target(least, demands, rank)
  local holder_demand = demands[rank]
  if holder_demand == DEPARTED then return 0 end
  local max_seats, needs, count, busy, idle, position = floor(ALL_GRANT_UNITS / least), {}, 0, 0, 0, 0
  for i = 1, #demands do
    local each = demands[i]
    if i == rank then position = holder_demand > 0 and busy or idle end
    if each > 0 then
      busy = busy + 1
      if busy <= max_seats then
        count = count + 1
        needs[count] = max(least, each)
      end
    elseif each == 0 then
      idle = idle + 1
    end
  end
  local level, extra_count, unused = level_of(needs)
  local need = 0
  if holder_demand > 0 then
    if position >= max_seats then return 0 end
    need = max(least, holder_demand)
    if level >= 0 and need > level then
      local ahead = 0
      for i = 1, position do
        if needs[i] > level then ahead = ahead + 1 end
      end
      return ahead < extra_count and level + 1 or level
    end
  else
    position = position + count
  end
  local sharers = count + max(0, min(idle + 1, floor(unused / least) - count))
  if position >= sharers then return need end
  local each = floor(unused / sharers)
  return need + each + (position < unused - each * sharers and 1 or 0)
end

-- Returns a holder's line with one more grant, and when the last of its grants ends.
local function line_with_grant(name, demand, before, now_us, grant_units, end_us)
  local grants, larger = active_grants(before, 0, now_us), {}
  for i = 1, #grants, 2 do
    if grants[i] > grant_units then
      larger[#larger + 1] = grants[i]
      larger[#larger + 1] = grants[i + 1]
    end
  end
  if #larger >= 2 * MAX_GRANTS_PER_HOLDER then
    larger[#larger - 2] = larger[#larger]
    larger[#larger] = nil
    larger[#larger] = nil
  end
  larger[#larger + 1] = grant_units
  end_us = max(end_us, grants[#grants] or 0)
  larger[#larger + 1] = end_us
  return format_line(name, demand, larger), end_us
end

-- Stores the demand of a holder (nil: it cannot know). Returns its grant units (-1: listening), the ledger, when that
-- dies, and how many holders it has; nil where the text cannot be parsed. Without a `text` there is no ledger yet.
function M.report_demand(least, text, now_us, name, wants, live_us, unknown_until_us)
  now_us = as_at(text, now_us)
  local ledger = read_ledger(text, now_us, name)
  if not ledger then return nil end
  if not text and unknown_until_us > now_us then ledger.listening_until_us = min(unknown_until_us, now_us + live_us) end
  local is_listening, demands, count = now_us < ledger.listening_until_us, ledger.demands, ledger.count
  local rank, before = ledger.rank, ""
  if rank then
    before = match(line_of(ledger, rank), "^%S+ %S+ (.*)\n$")
  elseif count >= MAX_HOLDERS then
    return is_listening and -1 or 0, write_ledger(ledger, now_us, count, line_of(ledger, count)), ledger.dead_us, count
  else
    rank = count + 1
    demands[rank] = DEPARTED
  end
  if wants then
    demands[rank] = M.damped_demand(demands[rank], wants)
  elseif demands[rank] == DEPARTED then
    local present = 1
    for i = 1, #demands do
      if demands[i] ~= DEPARTED then present = present + 1 end
    end
    demands[rank] = floor(ALL_GRANT_UNITS / present)
  end
  local grant_units = 0
  if not is_listening then
    grant_units = min(M.target(least, demands, rank), ALL_GRANT_UNITS - ledger.granted + ledger.largest)
    if grant_units < least then grant_units = 0 end
  end
  local new_line, end_us = line_with_grant(name, demands[rank], before, now_us, grant_units, now_us + live_us)
  local dead_us = max(ledger.dead_us, ledger.listening_until_us, end_us)
  return is_listening and -1 or grant_units, write_ledger(ledger, now_us, rank, new_line), dead_us, max(count, rank)
end

-- Removes a holder. Returns the ledger, and when that dies.
function M.remove_holder(text, now_us, name)
  now_us = as_at(text, now_us)
  local ledger = read_ledger(text, now_us, name)
  if not ledger then return nil end
  local rank = ledger.rank
  if not rank then return write_ledger(ledger, now_us, ledger.count + 1, ""), ledger.dead_us end
  local grants = active_grants(match(line_of(ledger, rank), "^%S+ %S+ (.*)\n$"), 0, now_us)
  return write_ledger(ledger, now_us, rank, format_line(name, DEPARTED, grants)), ledger.dead_us
end

return M
