-- Convoys: questions that are asked of one server at the same time travel together.
--
-- A question by itself costs nginx more than its decision costs Redis: a send, a receive, a turn of the event loop. So
-- while a worker has DRIVERS questions on the way to a server, whoever comes waits for a seat. When a driver is back,
-- the first of those who wait drives on, and takes all the others along, in one send. Where nobody is on the way,
-- nobody waits: alone, a question goes straight. Questions of one convoy that can be joined (questions.lua) are one run
-- of one script, which reads and writes a count only once that several of them charge.
--
--   ada    drives ............ answered
--   bob       drives ............ answered
--   cy           waits ...... drives ............ answered
--   dan             waits ... rides with cy ..... answered
--
-- Laws (tests/nginx/engines/redis/test_batching.py):
--   - no call takes longer than until `by`; who rides is answered, or has failed, by the end of the driver's time, and
--     nobody rides with a driver who has much less time (SOONER);
--   - the answer is that of the own question, whoever drives;
--   - what was sent and not answered is never sent again, and neither is a convoy that was sent in part; of who was
--     not taken along by his time, the trouble says that he was not charged;
--   - a driver that is broken off (his client has gone) costs those who ride with him their answer, and his place is
--     free again when his time is over: then one of those who wait takes it, or whoever comes. Who is broken off while
--     he waits costs nobody anything.

local line = require "resty.headgate.engines.redis.connection"
local questions = require "resty.headgate.engines.redis.commands"
local resp = require "resty.headgate.engines.redis.resp"
local semaphore = require "ngx.semaphore"
local trouble = require "resty.headgate.engines.redis.errors"

local now = require("resty.headgate.clock").now
local joined, packed_of = questions.joined, questions.packed
local concat, find, min, remove = table.concat, string.find, math.min, table.remove

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

-- The bytes of all of them; how many replies there will be; and, if some are joined in the first of those, which of
-- its rows is whose.
local function loaded(all)
  local first, rows = joined(all)
  local texts, count = { first }, first and 1 or 0
  for i = 1, #all do
    if not (rows and rows[i]) then
      count = count + 1
      texts[count] = packed_of(all[i])
    end
  end
  return texts, count, rows
end

-- Each one's own reply, of those that came.
local function dealt_out(all, rows, replies)
  if not rows then return replies end
  local found, at, together = {}, 1, replies[1]
  for i = 1, #all do
    if not rows[i] then
      at = at + 1
      found[i] = replies[at]
    elseif type(together) == "table" and not together.error then
      found[i] = together[rows[i]]
    else
      found[i] = together
    end
  end
  return found
end

-- A server that has forgotten the script of those that are joined has decided nothing for them: they are asked again,
-- with its text.
local function asked_again(address, packed, text, replies, by)
  local refused = type(replies[1]) == "table" and replies[1].error
  if not refused or not text or not find(refused, "^NOSCRIPT") then return nil end
  local again = {}
  local _, failure = line.ask_all(address, resp.with_text(packed, text), by, 1, again)
  replies[1] = again[1]
  return failure
end

local function drive_with(riders, address, question, by)
  local all = { question }
  for i, rider in ipairs(riders) do all[i + 1] = rider.question end
  local texts, count, rows = loaded(all)
  local replies = {}
  local _, failure = line.ask_all(address, concat(texts), by, count, replies)
  if failure and failure.kind == "wrong" then replies = {} end -- nobody knows what is an answer to what
  if rows and not failure then failure = asked_again(address, texts[1], question.text, replies, by) end
  local outcomes = dealt_out(all, rows, replies)
  failure = failure or trouble.wrong(address.text .. " answers fewer calls than it was asked")
  for i, rider in ipairs(riders) do
    if rider.wake then
      rider.answer, rider.done = outcomes[i + 1], true
      if rider.answer == nil then rider.failure = own(failure) end
      rider.wake:post(1)
    end
  end
  if outcomes[1] == nil then return nil, failure end
  return said(outcomes[1])
end

local function drive(convoy, at, address, question, by)
  convoy.ends[at] = by
  local answer, failure
  local riders = convoy.waiting[1] and board(convoy, by)
  if riders and riders[1] then
    answer, failure = drive_with(riders, address, question, by)
  else
    answer, failure = line.ask(address, packed_of(question), by)
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
local function ride(convoy, address, question, by)
  if by <= now() then return late(address) end
  local rider = { question = question, by = by, wake = remove(free) or semaphore.new() }
  convoy.waiting[#convoy.waiting + 1] = rider
  wait(convoy, rider)
  if rider.drives then
    if by > now() then return drive(convoy, rider.drives, address, question, by) end
    pass_on(convoy, rider.drives, by)
  end
  if not rider.done then return late(address, rider.aboard) end
  if rider.answer == nil then return nil, rider.failure end
  return said(rider.answer)
end

-- As line.ask: the reply to a question of questions.lua, or to what is packed in { packed = text }; or nil and trouble.
function M.ask(address, question, by)
  local convoy = address.convoy or begin(address)
  local at = place(convoy, now())
  if not at then return ride(convoy, address, question, by) end
  return drive(convoy, at, address, question, by)
end

return M
