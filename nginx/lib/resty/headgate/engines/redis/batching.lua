-- Batches requests to one server: those that are made at the same time travel together.
--
-- A request by itself costs nginx more than its decision costs Redis: a send, a receive, a turn of the event loop. So a
-- worker has at most MAX_IN_FLIGHT batches on the way to a server, each in a lane; a request that finds no free lane
-- waits. When a lane becomes free, the first that waits becomes the leader of the next batch: it sends its own request
-- and those of all others that wait. Where a lane is free, a request goes straight. Requests of one batch that can be
-- joined (commands.lua) are one run of one script, which reads and writes a count only once that several of them
-- charge.
--
--   ada    leads ............. answered
--   bob       leads ............. answered
--   cy           waits ...... leads ............. answered
--   dan             waits ... in cy's batch ..... answered
--
-- Laws (tests/nginx/engines/redis/test_batching.py):
--   - no call takes longer than until `deadline_at`; a waiter in a batch is answered, or has failed, by the end of the
--     leader's time, and no waiter joins a leader with a much earlier deadline (DEADLINE_SLACK_S);
--   - each call gets the reply to its own request, whoever leads;
--   - a request that was sent and not answered is never sent again, and neither is a batch that was sent in part; a
--     waiter that was in no batch by its deadline gets a failure that says that it was not charged;
--   - a leader that is aborted (its client has gone) costs its batch the replies, and its lane is free again at its
--     deadline: then one of those that wait takes it, or the next request. A waiter that is aborted costs others
--     nothing.

local commands = require "resty.headgate.engines.redis.commands"
local connection = require "resty.headgate.engines.redis.connection"
local resp = require "resty.headgate.engines.redis.resp"
local semaphore = require "ngx.semaphore"
local errors = require "resty.headgate.engines.redis.errors"
local measurements = require "resty.headgate.engines.measurements"

local now = require("resty.headgate.clock").now
local join_calls, encode = commands.join_calls, commands.encode
local concat, find, min, remove = table.concat, string.find, math.min, table.remove

local M = {}

local MAX_IN_FLIGHT = 4 -- batches: while Redis decides one, nginx prepares another
local BATCH_SIZE = 16 -- requests
local DEADLINE_SLACK_S = 0.01 -- that a leader's deadline may be before that of a waiter
local CLOCK_TICK_S = 0.001 -- of nginx's clock: a shorter wait is none
local RECHECK_S = 0.25 -- after which a waiter looks for a lane again: the leader's deadline may have been earlier
local MAX_FREE_SEMAPHORES = 256

local free_semaphores = {}

local function new_batcher(address)
  local batcher = { busy_until = {}, waiting = {} }
  for i = 1, MAX_IN_FLIGHT do batcher.busy_until[i] = 0 end
  address.batcher = batcher
  return batcher
end

-- Returns a lane that is free, or whose leader's deadline is over; nil if there is none.
local function free_lane(batcher, at)
  local busy_until = batcher.busy_until
  for i = 1, MAX_IN_FLIGHT do
    if busy_until[i] <= at then return i end
  end
  return nil
end

-- Returns when the next lane is free, even if no leader returns.
local function next_free_at(batcher)
  local busy_until = batcher.busy_until
  local result = busy_until[1]
  for i = 2, MAX_IN_FLIGHT do result = min(result, busy_until[i]) end
  return result
end

-- Returns whether a waiter still waits: it has neither left nor been aborted.
local function is_waiting(waiter) return waiter.semaphore and waiter.semaphore:count() < 0 end

-- Releases the lane of a leader, if it is still its own: the first waiter leads the next batch.
local function release_lane(batcher, lane, deadline_at)
  if batcher.busy_until[lane] ~= deadline_at then return end
  local waiting = batcher.waiting
  local waiter = remove(waiting, 1)
  while waiter and not is_waiting(waiter) do waiter = remove(waiting, 1) end
  batcher.busy_until[lane] = waiter and waiter.deadline_at or 0
  if not waiter then return end
  waiter.lane = lane
  waiter.semaphore:post(1)
end

-- Returns the waiters that join a leader with this deadline; the others go on waiting.
local function collect_batch(batcher, deadline_at)
  local batch, left_waiting = {}, {}
  for _, waiter in ipairs(batcher.waiting) do
    if #batch == BATCH_SIZE - 1 or waiter.deadline_at > deadline_at + DEADLINE_SLACK_S then
      if waiter.semaphore then left_waiting[#left_waiting + 1] = waiter end
    elseif is_waiting(waiter) then
      waiter.in_batch = true
      batch[#batch + 1] = waiter
    end
  end
  batcher.waiting = left_waiting
  return batch
end

local function check_reply(reply)
  if type(reply) == "table" and reply.error then return nil, errors.from_reply(reply.error) end
  return reply
end

-- Copies a failure for another caller, which may change it.
local function copy_failure(failure)
  local result = {}
  for name, value in pairs(failure) do result[name] = value end
  return result
end

-- Encodes a batch. Returns the bytes of its requests; how many replies there will be; and, if some are joined in the
-- first, the row of each in its reply.
local function encode_batch(requests)
  local first, row_of = join_calls(requests)
  local packed_requests, count = { first }, first and 1 or 0
  for i = 1, #requests do
    if not (row_of and row_of[i]) then
      count = count + 1
      packed_requests[count] = encode(requests[i])
    end
  end
  return packed_requests, count, row_of
end

-- Returns the reply to each request.
local function split_replies(requests, row_of, replies)
  if not row_of then return replies end
  local result, next_reply, joined_reply = {}, 1, replies[1]
  for i = 1, #requests do
    if not row_of[i] then
      next_reply = next_reply + 1
      result[i] = replies[next_reply]
    elseif type(joined_reply) == "table" and not joined_reply.error then
      result[i] = joined_reply[row_of[i]]
    else
      result[i] = joined_reply
    end
  end
  return result
end

-- Sends the joined requests again, with the text of their script, to a server that did not know it: it has decided
-- nothing for them.
local function retry_with_script(address, packed, script, replies, deadline_at)
  local error_text = type(replies[1]) == "table" and replies[1].error
  if not error_text or not script or not find(error_text, "^NOSCRIPT") then return nil end
  local retried = {}
  local _, failure = connection.request_all(address, resp.with_text(packed, script), deadline_at, 1, retried)
  replies[1] = retried[1]
  return failure
end

local function send_batch(batch, address, request, deadline_at)
  local requests = { request }
  for i, waiter in ipairs(batch) do requests[i + 1] = waiter.request end
  local packed_requests, count, row_of = encode_batch(requests)
  local replies = {}
  local _, failure = connection.request_all(address, concat(packed_requests), deadline_at, count, replies)
  if failure and failure.kind == "wrong" then replies = {} end -- replies cannot be assigned to requests
  if row_of and not failure then
    failure = retry_with_script(address, packed_requests[1], request.text, replies, deadline_at)
  end
  local request_replies = split_replies(requests, row_of, replies)
  failure = failure or errors.unusable(address.text .. " sent fewer replies than there were requests")
  for i, waiter in ipairs(batch) do
    if waiter.semaphore then
      waiter.reply, waiter.done = request_replies[i + 1], true
      if waiter.reply == nil then waiter.failure = copy_failure(failure) end
      waiter.semaphore:post(1)
    end
  end
  if request_replies[1] == nil then return nil, failure end
  return check_reply(request_replies[1])
end

local function send(batcher, lane, address, request, deadline_at)
  batcher.busy_until[lane] = deadline_at
  local reply, failure
  local started_us = measurements.begin("round_trip_seconds")
  local batch = batcher.waiting[1] and collect_batch(batcher, deadline_at)
  if batch and batch[1] then
    reply, failure = send_batch(batch, address, request, deadline_at)
  else
    reply, failure = connection.request(address, encode(request), deadline_at)
  end
  if started_us and reply ~= nil then
    measurements.observe_since("round_trip_seconds", started_us)
    measurements.observe("batch_requests", batch and #batch + 1 or 1)
  end
  release_lane(batcher, lane, deadline_at)
  return reply, failure
end

-- Waits until there is a reply, a free lane, or no time left. A waiter that is in no batch looks for a lane itself when
-- a leader's deadline is over: that one may not return.
local function wait_for_reply(batcher, waiter)
  local waiter_semaphore, deadline_at = waiter.semaphore, waiter.deadline_at
  repeat
    local wait_until = waiter.in_batch and deadline_at or min(deadline_at, next_free_at(batcher), now() + RECHECK_S)
    local signalled, why = waiter_semaphore:wait(wait_until - now() + CLOCK_TICK_S)
    if not signalled and why ~= "timeout" then error(why, 0) end
    local finished = waiter.done or waiter.lane
    if finished and not signalled then waiter_semaphore:wait(0) end -- posted this very moment; it will be reused
    if not finished and not waiter.in_batch then waiter.lane = free_lane(batcher, now()) end
  until finished or waiter.lane or deadline_at <= now()
  waiter.semaphore = nil
  if #free_semaphores < MAX_FREE_SEMAPHORES then free_semaphores[#free_semaphores + 1] = waiter_semaphore end
end

local function timeout_failure(address, was_sent)
  if was_sent then return nil, errors.timed_out(address.text .. ": no reply in time") end
  return nil, errors.connect_failed(address.text .. ": not asked in time", "timeout")
end

-- Waits for a reply, or for a lane.
local function wait_or_send(batcher, address, request, deadline_at)
  if deadline_at <= now() then return timeout_failure(address) end
  local waiter_semaphore = remove(free_semaphores) or semaphore.new()
  local waiter = { request = request, deadline_at = deadline_at, semaphore = waiter_semaphore }
  batcher.waiting[#batcher.waiting + 1] = waiter
  wait_for_reply(batcher, waiter)
  if waiter.lane then
    if deadline_at > now() then return send(batcher, waiter.lane, address, request, deadline_at) end
    release_lane(batcher, waiter.lane, deadline_at)
  end
  if not waiter.done then return timeout_failure(address, waiter.in_batch) end
  if waiter.reply == nil then return nil, waiter.failure end
  return check_reply(waiter.reply)
end

-- Sends a request of commands.lua, or { packed = bytes }. Returns the reply, or nil and a failure.
function M.request(address, request, deadline_at)
  local batcher = address.batcher or new_batcher(address)
  local lane = free_lane(batcher, now())
  if not lane then return wait_or_send(batcher, address, request, deadline_at) end
  return send(batcher, lane, address, request, deadline_at)
end

return M
