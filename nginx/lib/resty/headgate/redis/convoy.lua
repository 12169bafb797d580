-- Convoys: questions that are asked of one server at the same time travel together.
--
-- A question by itself costs nginx more than its decision costs Redis: a send, a receive, a turn of the event loop. So
-- while a worker has DRIVERS questions on the way to a server, whoever comes waits for a seat. When a driver is back,
-- the first of those who wait drives on, and takes all the others along, in one send. Where nobody is on the way,
-- nobody waits: alone, a question goes straight.
--
--   ada    drives ............ answered
--   bob       drives ............ answered
--   cy           waits ...... drives ............ answered
--   dan             waits ... rides with cy ..... answered
--
-- Laws (tests/nginx/redis/test_convoy.py):
--   - no call takes longer than until `by`; who rides is answered, or has failed, by the end of the driver's time, and
--     nobody rides with a driver who has much less time (SOONER);
--   - the answer is that of the own question, whoever drives;
--   - what was sent and not answered is never sent again, and neither is a convoy that was sent in part; of who was
--     not taken along by his time, the trouble says that he was not charged;
--   - a driver that is broken off (his client has gone) costs those who ride with him their answer, and his place is
--     free again when his time is over: then one of those who wait takes it, or whoever comes. Who is broken off while
--     he waits costs nobody anything.

local line = require "resty.headgate.redis.line"
local semaphore = require "ngx.semaphore"
local trouble = require "resty.headgate.redis.trouble"

local now = require("resty.headgate.clock").now
local concat, min, remove = table.concat, math.min, table.remove

local M = {}

local DRIVERS = 4 -- on the way at once: while Redis decides for one, nginx makes another ready
local SEATS = 16 -- questions in a convoy
local SOONER = 0.01 -- seconds that a driver's time may end before that of who rides with him
local TICK = 0.001 -- ... of nginx's clock: a shorter wait is none
local LOOK = 0.25 -- ... after which one who waits looks again for a place: who drove on may have had less time
local KEPT = 256 -- semaphores that are not used at the moment

local free = {}

local function begin(address)
  local convoy = { ends = {}, waiting = {} }
  for i = 1, DRIVERS do convoy.ends[i] = 0 end
  address.convoy = convoy
  return convoy
end

-- A driver's place that nobody has, or whose driver has no time left; nil if there is none.
local function place(convoy, at)
  local ends = convoy.ends
  for i = 1, DRIVERS do
    if ends[i] <= at then return i end
  end
  return nil
end

-- When the next place is free, even if no driver comes back.
local function soonest(convoy)
  local ends = convoy.ends
  local found = ends[1]
  for i = 2, DRIVERS do found = min(found, ends[i]) end
  return found
end

-- Whether somebody is there who waits: he has not left, and was not broken off.
local function there(rider) return rider.wake and rider.wake:count() < 0 end

-- The driver of this place is back: if it is still his, the first who waits drives on.
local function pass_on(convoy, at, by)
  if convoy.ends[at] ~= by then return end
  local waiting = convoy.waiting
  local rider = remove(waiting, 1)
  while rider and not there(rider) do rider = remove(waiting, 1) end
  convoy.ends[at] = rider and rider.by or 0
  if not rider then return end
  rider.drives = at
  rider.wake:post(1)
end

-- Those who ride with a driver whose time ends then; the others go on waiting.
local function board(convoy, by)
  local riders, others = {}, {}
  for _, rider in ipairs(convoy.waiting) do
    if #riders == SEATS - 1 or rider.by > by + SOONER then
      if rider.wake then others[#others + 1] = rider end
    elseif there(rider) then
      rider.aboard = true
      riders[#riders + 1] = rider
    end
  end
  convoy.waiting = others
  return riders
end

local function said(answer)
  if type(answer) == "table" and answer.error then return nil, trouble.said(answer.error) end
  return answer
end

-- The same trouble for another one, who may write into it.
local function own(failure)
  local found = {}
  for name, value in pairs(failure) do found[name] = value end
  return found
end

local function drive_with(riders, address, packed, by)
  local texts, answers = { packed }, {}
  for i, rider in ipairs(riders) do texts[i + 1] = rider.packed end
  local _, failure = line.ask_all(address, concat(texts), by, #texts, answers)
  if failure and failure.kind == "wrong" then answers = {} end -- nobody knows what is an answer to what
  for i, rider in ipairs(riders) do
    if rider.wake then
      rider.answer, rider.done = answers[i + 1], true
      if rider.answer == nil then rider.failure = own(failure) end
      rider.wake:post(1)
    end
  end
  if answers[1] == nil then return nil, failure end
  return said(answers[1])
end

local function drive(convoy, at, address, packed, by)
  convoy.ends[at] = by
  local answer, failure
  local riders = convoy.waiting[1] and board(convoy, by)
  if riders and riders[1] then
    answer, failure = drive_with(riders, address, packed, by)
  else
    answer, failure = line.ask(address, packed, by)
  end
  pass_on(convoy, at, by)
  return answer, failure
end

-- Until he is answered, has the place of a driver, or has no time left. Whoever was not taken along looks for a place
-- himself when a driver's time is over: that one may not come back.
local function wait(convoy, rider)
  local wake, by = rider.wake, rider.by
  repeat
    local upto = rider.aboard and by or min(by, soonest(convoy), now() + LOOK)
    local woken, why = wake:wait(upto - now() + TICK)
    if not woken and why ~= "timeout" then error(why, 0) end
    local told = rider.done or rider.drives
    if told and not woken then wake:wait(0) end -- told in the very moment; nobody else may find that
    if not told and not rider.aboard then rider.drives = place(convoy, now()) end
  until told or rider.drives or by <= now()
  rider.wake = nil
  if #free < KEPT then free[#free + 1] = wake end
end

local function late(address, aboard)
  if aboard then return nil, trouble.late(address.text .. ": no reply in time") end
  return nil, trouble.unreached(address.text .. ": not asked in time", "timeout")
end

-- Waits for an answer, or for the place of a driver.
local function ride(convoy, address, packed, by)
  if by <= now() then return late(address) end
  local rider = { packed = packed, by = by, wake = remove(free) or semaphore.new() }
  convoy.waiting[#convoy.waiting + 1] = rider
  wait(convoy, rider)
  if rider.drives then
    if by > now() then return drive(convoy, rider.drives, address, packed, by) end
    pass_on(convoy, rider.drives, by)
  end
  if not rider.done then return late(address, rider.aboard) end
  if rider.answer == nil then return nil, rider.failure end
  return said(rider.answer)
end

-- As line.ask: the reply to what is packed, or nil and trouble.
function M.ask(address, packed, by)
  local convoy = address.convoy or begin(address)
  local at = place(convoy, now())
  if not at then return ride(convoy, address, packed, by) end
  return drive(convoy, at, address, packed, by)
end

return M
