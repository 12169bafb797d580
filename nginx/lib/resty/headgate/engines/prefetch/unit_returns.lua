-- What is left of stocks goes back, when they end: seen to by the worker that ordered them, in a timer. The story
-- stands in lease.lua.
--
-- A worker has a list of the stocks that it ordered, and wakes when the first of them ends. What was used up needs
-- nothing. What was not is ended and given back under the key's flag, so that nobody orders meanwhile. If Redis gives
-- no answer, what was on the way is lost, and what has yet to go waits for a second.
--
-- Law (tests/nginx/engines/test_prefetch.py): what a stock has left is given back once, whoever ends it.

local clock = require "resty.headgate.clock"
local stocks = require "resty.headgate.engines.prefetch.prefetched_units"

local M = {}

local ENDED = 2 ^ 50 -- a counter that stands as low as this is of a stock that has ended
local PATIENCE = 1 -- seconds that an answer is waited for
local FLAGGED = PATIENCE + 1 -- seconds that a flag lasts if its worker dies
local PAUSE_US, AGAIN_US = 20000, 1000000 -- until a flag that is taken, or a Redis that failed, is tried again
local SLACK_US = 1000 -- nobody is woken for less
local TELL_EVERY = 10

local max, now, now_us, timer_at = math.max, clock.now, clock.wall_us, ngx.timer.at

local Returns = {}
Returns.__index = Returns

function M.new(inner, dict)
  return setmetatable({
    inner = inner, dict = dict, list = {}, wakes_us = math.huge, told_at = -TELL_EVERY, lost_units = 0,
  }, Returns)
end

-- Nobody takes from it any more. How much was left: it belongs to who ended it.
function Returns:finish(stock)
  local low = self.dict:incr(stock.counter, -ENDED)
  return low and max(0, low + ENDED) or 0
end

-- Whether a stock had ended when its counter stood so.
function M.ended(low) return low < -ENDED / 2 end

function Returns:lost(units, why)
  self.lost_units = self.lost_units + units
  if now() - self.told_at < TELL_EVERY then return end
  self.told_at = now()
  ngx.log(ngx.WARN, "headgate: prefetched units could not be given back (", self.lost_units,
    " so far); their limits refill by themselves: ", why)
end

-- So many units of a stock that has ended. Whether Redis answered.
function Returns:give_back(stock, left)
  if left == 0 or not stocks.counts(stock, now_us()) then return true end
  local charge = { hand = stock.own.hand, key = stock.key, cost = left }
  local after, trouble = self.inner:refund(charge, stocks.rest(stock), PATIENCE)
  if after then return true end
  self:lost(left, trouble.text)
  return false
end

-- In a timer: who found something left did it with the key's flag in hand, and lets it go only now.
local function give_flagged(_, self, stock, left, flag)
  self:give_back(stock, left)
  self.dict:delete(flag)
end

-- Whether that was begun; the flag is then no longer the caller's.
function Returns:begin(stock, left, flag)
  self.dict:expire(flag, FLAGGED)
  local begun, why = timer_at(0, give_flagged, self, stock, left, flag)
  if not begun then self:lost(left, why) end
  return begun
end

-- One that is due: when to look at it again, or nil if it is done with; and whether Redis failed.
local function settle(self, stock, closing)
  local dict, own = self.dict, stock.own
  local left = dict:get(stock.counter)
  if not left or left <= 0 then return nil, false end
  local flag = own.flag .. stock.key
  local ours = closing or dict:safe_add(flag, true, FLAGGED)
  if not ours then return now_us() + PAUSE_US, false end
  local answered = self:give_back(stock, self:finish(stock))
  if not closing then dict:delete(flag) end
  return nil, not answered
end

local wake

-- Wakes by then at the latest.
local function arm(self, due_us)
  if due_us >= self.wakes_us - SLACK_US then return true end
  local armed, why = timer_at(max(SLACK_US, due_us - now_us()) / 1000000, wake, self, due_us)
  if not armed then return nil, why end
  self.wakes_us = due_us
  return true
end

local function sweep(self, closing)
  local list = self.list
  self.list = {}
  local failed = false
  for _, stock in ipairs(list) do
    if not failed and (closing or stock.due_us <= now_us() + SLACK_US) then
      stock.due_us, failed = settle(self, stock, closing)
    elseif failed then
      stock.due_us = max(stock.due_us, now_us() + AGAIN_US)
    end
    if stock.due_us then self.list[#self.list + 1] = stock end
  end
end

-- A timer that another one has come before is stale.
function wake(premature, self, due_us)
  if due_us ~= self.wakes_us and not premature then return end
  self.wakes_us = math.huge
  sweep(self, premature)
  if premature then return end
  local first_us = math.huge
  for _, stock in ipairs(self.list) do first_us = math.min(first_us, stock.due_us) end
  if first_us == math.huge then return end
  local armed, why = arm(self, first_us)
  if not armed then ngx.log(ngx.ERR, "headgate: prefetched units are given back late: ", why) end
end

-- A stock is seen to when it ends; nil and why if it cannot be.
function Returns:later(stock)
  stock.due_us = stock.until_us
  local armed, why = arm(self, stock.due_us)
  if not armed then return nil, why end
  self.list[#self.list + 1] = stock
  return true
end

return M
