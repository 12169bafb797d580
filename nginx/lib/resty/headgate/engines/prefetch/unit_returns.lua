-- Refunds the rest of prefetched units when their time ends: by the worker that fetched them, in a timer. prefetch.lua
-- describes the whole.
--
-- A worker has a list of the units that it fetched, and wakes when the first of them end. Units that were used up need
-- nothing. The rest is closed and refunded under the key's flag, so that no worker fetches meanwhile. If Redis does not
-- answer, the units that were on the way are lost, and the next ones wait for a second.
--
-- Law (tests/nginx/engines/test_prefetch.py): the rest of prefetched units is refunded once, whoever closes them.

local clock = require "resty.headgate.clock"
local measurements = require "resty.headgate.engines.measurements"
local prefetched_units = require "resty.headgate.engines.prefetch.prefetched_units"

local M = {}

local ENDED_OFFSET = 2 ^ 50 -- a counter this low was closed
local TIMEOUT_S = 1 -- of one refund
local FLAG_TTL_S = TIMEOUT_S + 1 -- if its worker dies
local FLAG_RETRY_US, FAILURE_RETRY_US = 20000, 1000000 -- after a flag that is taken, or a failure of Redis
local TIMER_SLACK_US = 1000 -- shorter waits are not worth a timer
local LOG_INTERVAL_S = 10

local max, now, now_us, timer_at = math.max, clock.now, clock.wall_us, ngx.timer.at

local UnitReturns = {}
UnitReturns.__index = UnitReturns

function M.new(inner, dict)
  return setmetatable({
    inner = inner, dict = dict, pending = {}, timer_at_us = math.huge, logged_at = -LOG_INTERVAL_S, lost_units = 0,
  }, UnitReturns)
end

-- Closes prefetched units: no call takes from them any more. Returns how many were left: they belong to the caller.
function UnitReturns:close(prefetched)
  local counter = self.dict:incr(prefetched.counter, -ENDED_OFFSET)
  return counter and max(0, counter + ENDED_OFFSET) or 0
end

-- Returns whether a counter with this value was closed.
function M.is_ended(counter) return counter < -ENDED_OFFSET / 2 end

function UnitReturns:log_lost(units, why)
  self.lost_units = self.lost_units + units
  measurements.add("prefetch_lost_units_total", units)
  if now() - self.logged_at < LOG_INTERVAL_S then return end
  self.logged_at = now()
  ngx.log(ngx.WARN, "headgate: prefetched units could not be given back (", self.lost_units,
    " so far); their limits refill by themselves: ", why)
end

-- Refunds units that were closed. Returns whether Redis answered.
function UnitReturns:return_units(prefetched, units_left)
  if units_left == 0 or not prefetched_units.is_counted(prefetched, now_us()) then return true end
  local charge = { bound_limit = prefetched.prefetcher.bound_limit, key = prefetched.key, cost = units_left }
  local after, failure = self.inner:refund(charge, prefetched_units.receipt_of_rest(prefetched), TIMEOUT_S)
  if after then return true end
  self:log_lost(units_left, failure.text)
  return false
end

-- Refunds units in a timer, and then deletes the flag that the caller has set.
local function return_flagged(_, self, prefetched, units_left, flag)
  self:return_units(prefetched, units_left)
  self.dict:delete(flag)
end

-- Starts a refund in a timer. Returns whether it started; the flag is then no longer the caller's.
function UnitReturns:return_in_background(prefetched, units_left, flag)
  self.dict:expire(flag, FLAG_TTL_S)
  local started, why = timer_at(0, return_flagged, self, prefetched, units_left, flag)
  if not started then self:log_lost(units_left, why) end
  return started
end

-- Refunds units that are due. Returns when to try again, or nil if they are done; and whether Redis failed.
local function return_due(self, prefetched, exiting)
  local dict, prefetcher = self.dict, prefetched.prefetcher
  local units_left = dict:get(prefetched.counter)
  if not units_left or units_left <= 0 then return nil, false end
  local flag = prefetcher.flag_name .. prefetched.key
  local has_flag = exiting or dict:safe_add(flag, true, FLAG_TTL_S)
  if not has_flag then return now_us() + FLAG_RETRY_US, false end
  local redis_answered = self:return_units(prefetched, self:close(prefetched))
  if not exiting then dict:delete(flag) end
  return nil, not redis_answered
end

local on_timer

-- Arms the timer, to fire by then at the latest.
local function arm_timer(self, due_us)
  if due_us >= self.timer_at_us - TIMER_SLACK_US then return true end
  local armed, why = timer_at(max(TIMER_SLACK_US, due_us - now_us()) / 1000000, on_timer, self, due_us)
  if not armed then return nil, why end
  self.timer_at_us = due_us
  return true
end

local function sweep(self, exiting)
  local pending = self.pending
  self.pending = {}
  local failed = false
  for _, prefetched in ipairs(pending) do
    if not failed and (exiting or prefetched.due_us <= now_us() + TIMER_SLACK_US) then
      prefetched.due_us, failed = return_due(self, prefetched, exiting)
    elseif failed then
      prefetched.due_us = max(prefetched.due_us, now_us() + FAILURE_RETRY_US)
    end
    if prefetched.due_us then self.pending[#self.pending + 1] = prefetched end
  end
end

-- Refunds what is due. A timer that was replaced by an earlier one does nothing.
function on_timer(premature, self, due_us)
  if due_us ~= self.timer_at_us and not premature then return end
  self.timer_at_us = math.huge
  sweep(self, premature)
  if premature then return end
  local first_us = math.huge
  for _, prefetched in ipairs(self.pending) do first_us = math.min(first_us, prefetched.due_us) end
  if first_us == math.huge then return end
  local armed, why = arm_timer(self, first_us)
  if not armed then ngx.log(ngx.ERR, "headgate: prefetched units are given back late: ", why) end
end

-- Schedules the refund of units for the end of their time; nil and why if it cannot be.
function UnitReturns:schedule(prefetched)
  prefetched.due_us = prefetched.until_us
  local armed, why = arm_timer(self, prefetched.due_us)
  if not armed then return nil, why end
  self.pending[#self.pending + 1] = prefetched
  return true
end

return M
