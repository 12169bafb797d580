-- Assignments: the twin of algorithms/quota_grants.py, which tells their story and their laws.
--
-- A ledger stays the text that is stored: of most holders three numbers are read, and their lines are not touched.

local floor, max, min = math.floor, math.max, math.min
local find, format, match, sub = string.find, string.format, string.match, string.sub
local M = { width = 1 }

local WHOLE, HOLDERS, PARTS, LEFT = 1081080000, 1000, 4, -1
local SWING_US = 100000

-- Returns the instant that a ledger is decided as of: now, or that of its last writing if the clock swings.
local function as_at(text, now_us)
  local stamp_us = tonumber(text and match(text, "^%d+")) or now_us
  return stamp_us > now_us and stamp_us <= now_us + SWING_US and stamp_us or now_us
end

-- Grains and ends, in turn, of those parts that have not ended; and whether that is all as it was.
local function alive(text, back_us, now_us)
  local parts, same = {}, back_us == 0
  for grains, end_us in string.gmatch(text, "(%d+) (%d+)") do
    end_us = end_us - back_us
    if end_us > now_us then
      parts[#parts + 1] = tonumber(grains)
      parts[#parts + 1] = end_us
    else
      same = false
    end
  end
  return parts, same
end

local function line(name, noted, parts)
  local words = {}
  for i = 1, #parts do words[i] = format("%.0f", parts[i]) end
  return format("%s %.0f %s\n", name, noted, table.concat(words, " "))
end

-- The part of a ledger that still counts, also after the clock was set back.
--   text, body       as it is stored, and where the holders' lines begin; `same` if all of them still hold
--   noted            by rank; likewise firsts and lasts, where a line stands, and lines, those that changed
--   held, dead_us    the sum of all largest parts, and when the last part ends
--   rank, largest    of the holder that is named; nil, 0 if it is not there
-- nil where the text cannot be read.
local function settled(text, now_us, name)
  local noted, firsts, lasts, lines = {}, {}, {}, {}
  local ledger = { text = text or "", body = 1, same = true, listens_us = 0, held = 0, dead_us = 0, largest = 0 }
  ledger.noted, ledger.firsts, ledger.lasts, ledger.lines, ledger.count = noted, firsts, lasts, lines, 0
  if not text then return ledger end
  local stamp, listens, start = match(text, "^(%d+) (%d+)\n()")
  if not start then return nil end
  local back_us = max(0, stamp - now_us)
  ledger.body, ledger.listens_us = start, max(0, listens - back_us)
  local own = find(text, "\n" .. name .. " ", 1, true)
  local count, held, dead_us = 0, 0, ledger.listens_us
  while true do
    local first, last, wants, grains, end_us, more = find(text, "^%S+ (%S+) (%d+) (%d+)([^\n]*)\n", start)
    if not first then break end
    local changed
    if more == "" and back_us == 0 then
      end_us = tonumber(end_us)
      grains = end_us > now_us and tonumber(grains)
    else
      local parts, same = alive(grains .. " " .. end_us .. more, back_us, now_us)
      grains, end_us = parts[1], parts[#parts]
      if grains and not same then changed = line(match(text, "^%S+", first), wants, parts) end
    end
    if grains then
      count = count + 1
      noted[count], firsts[count], lasts[count], lines[count] = tonumber(wants), first, last, changed
      held = held + grains
      if end_us > dead_us then dead_us = end_us end
      if own and first == own + 1 then ledger.rank, ledger.largest = count, grains end
    end
    if changed or not grains then ledger.same = false end
    start = last + 1
  end
  if start <= #text then return nil end
  ledger.count, ledger.held, ledger.dead_us = count, held, dead_us
  return ledger
end

local function line_of(ledger, rank)
  return ledger.lines[rank] or sub(ledger.text, ledger.firsts[rank], ledger.lasts[rank])
end

-- The ledger as it is stored, with another line in that rank, or with one more.
local function written(ledger, now_us, rank, new)
  local start, text = format("%.0f %.0f\n", now_us, ledger.listens_us), ledger.text
  if ledger.same then
    local first, last = ledger.firsts[rank] or #text + 1, ledger.lasts[rank] or #text
    return start .. sub(text, ledger.body, first - 1) .. new .. sub(text, last + 1)
  end
  local lines = {}
  for i = 1, ledger.count do lines[i] = i == rank and new or line_of(ledger, i) end
  if rank > ledger.count then lines[rank] = new end
  return start .. table.concat(lines)
end

-- What is noted of one who reports this.
function M.note(before, wants)
  if before - floor(before / 4) <= wants and wants <= before then return before end
  return min(WHOLE, wants + floor((wants + 7) / 8))
end

-- The level above which no need is met, how many of those get a grain more, and what is left over; -1: all are met.
local function level_of(needs)
  local count, left = #needs, WHOLE
  while count > 0 do
    local level, met, unmet = floor(left / count), 0, 0
    for i = 1, #needs do
      if needs[i] > level then unmet = unmet + 1 else met = met + needs[i] end
    end
    if unmet == count then return level, left - level * count, 0 end
    count, left = unmet, WHOLE - met
  end
  return -1, 0, left
end

-- What the holder of this rank, counted from 1, should have, by what is noted of all.
function M.target(least, noted, rank)
  local mine = noted[rank]
  if mine == LEFT then return 0 end
  local seats, needs, count, busy, idle, place = floor(WHOLE / least), {}, 0, 0, 0, 0
  for i = 1, #noted do
    local each = noted[i]
    if i == rank then place = mine > 0 and busy or idle end
    if each > 0 then
      busy = busy + 1
      if busy <= seats then
        count = count + 1
        needs[count] = max(least, each)
      end
    elseif each == 0 then
      idle = idle + 1
    end
  end
  local level, over, left = level_of(needs)
  local need = 0
  if mine > 0 then
    if place >= seats then return 0 end
    need = max(least, mine)
    if level >= 0 and need > level then
      local ahead = 0
      for i = 1, place do
        if needs[i] > level then ahead = ahead + 1 end
      end
      return ahead < over and level + 1 or level
    end
  else
    place = place + count
  end
  local sharers = count + max(0, min(idle + 1, floor(left / least) - count))
  if place >= sharers then return need end
  local each = floor(left / sharers)
  return need + each + (place < left - each * sharers and 1 or 0)
end

-- A holder's line with one more part, and when the last of them ends.
local function with(name, noted, before, now_us, grains, end_us)
  local parts, kept = alive(before, 0, now_us), {}
  for i = 1, #parts, 2 do
    if parts[i] > grains then
      kept[#kept + 1] = parts[i]
      kept[#kept + 1] = parts[i + 1]
    end
  end
  if #kept >= 2 * PARTS then
    kept[#kept - 2] = kept[#kept]
    kept[#kept] = nil
    kept[#kept] = nil
  end
  kept[#kept + 1] = grains
  end_us = max(end_us, parts[#parts] or 0)
  kept[#kept + 1] = end_us
  return line(name, noted, kept), end_us
end

-- Note what a holder wants (nil: it cannot know), and tell it its part. Answers the grains (-1: listening), the
-- ledger, its death, and how many holders it has; nil where the text cannot be read. Without a `text` there is no
-- ledger yet.
function M.tell(least, text, now_us, name, wants, live_us, unknown_until_us)
  now_us = as_at(text, now_us)
  local ledger = settled(text, now_us, name)
  if not ledger then return nil end
  if not text and unknown_until_us > now_us then ledger.listens_us = min(unknown_until_us, now_us + live_us) end
  local listens, noted, count = now_us < ledger.listens_us, ledger.noted, ledger.count
  local rank, before = ledger.rank, ""
  if rank then
    before = match(line_of(ledger, rank), "^%S+ %S+ (.*)\n$")
  elseif count >= HOLDERS then
    return listens and -1 or 0, written(ledger, now_us, count, line_of(ledger, count)), ledger.dead_us, count
  else
    rank = count + 1
    noted[rank] = LEFT
  end
  if wants then
    noted[rank] = M.note(noted[rank], wants)
  elseif noted[rank] == LEFT then
    local present = 1
    for i = 1, #noted do
      if noted[i] ~= LEFT then present = present + 1 end
    end
    noted[rank] = floor(WHOLE / present)
  end
  local grains = 0
  if not listens then
    grains = min(M.target(least, noted, rank), WHOLE - ledger.held + ledger.largest)
    if grains < least then grains = 0 end
  end
  local own, end_us = with(name, noted[rank], before, now_us, grains, now_us + live_us)
  local dead_us = max(ledger.dead_us, ledger.listens_us, end_us)
  return listens and -1 or grains, written(ledger, now_us, rank, own), dead_us, max(count, rank)
end

-- A holder says goodbye. Answers the ledger and its death.
function M.leave(text, now_us, name)
  now_us = as_at(text, now_us)
  local ledger = settled(text, now_us, name)
  if not ledger then return nil end
  local rank = ledger.rank
  if not rank then return written(ledger, now_us, ledger.count + 1, ""), ledger.dead_us end
  local parts = alive(match(line_of(ledger, rank), "^%S+ %S+ (.*)\n$"), 0, now_us)
  return written(ledger, now_us, rank, line(name, LEFT, parts)), ledger.dead_us
end

return M
