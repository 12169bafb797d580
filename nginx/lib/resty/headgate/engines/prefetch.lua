-- Prefetching: units of hot keys are fetched ahead from Redis, and handed out by this nginx without asking. The
-- twin in law of engines/layers/prefetch/engines.py; one nginx, all its workers together, is one process of that law.
--
-- Picture a kiosk that orders from a warehouse. What sells is ordered ahead, as much as was sold lately, and sold over
-- the counter; what does not sell goes back before it spoils. An order is a take of the call's cost and some extra,
-- one charge on Redis, of which the extra stays here as a stock.
--
-- On the dict, for each key of a hand:
--
--   l:n:  how many units were asked for, a number, while the key is cold: it ends a hold time after the first;
--         or, once it was prefetched, a line of text that describes its stock (engines/prefetch/prefetched_units.lua)
--   l:u:  how many units of that stock are left: a number of each stock's own, taken from by incr alone. Who finds
--         too few puts back what he took and asks; a stock that has ended stands very low, and whoever put it there
--         got what was left. No two can have the same unit, and no unit gets into a stock that it is not of
--   l:r:  what the last answer left, of keys that are getting hot
--   l:o:  a flag: somebody orders or gives back. One at a time; all others ask Redis for themselves, exactly. It
--         ends by itself a second after its time, so that a worker that was killed is in nobody's way
--
-- A worker knows the stocks of its keys, so a unit is a look into a table and one incr. A cold key costs one incr (the
-- first time a second call, because incr alone would throw out others when the dict is full).
--
-- Sizing. A key is cold until, within a hold time, HOT times as much was asked for as the call wants. Then an order's
-- extra is what was asked for during the last hold time: at most U units (a tenth of what the limit holds at once,
-- unless given), and at most half of what the last answer left. So near the edge every call is a take, decided
-- exactly; an order that is refused all the same is asked again for the call alone.
--
-- When a quarter of a stock or of its time is left, the next one is ordered in a timer, and takes its place when it is
-- there; both together are never more than U. So a key that stays hot makes nobody wait.
--
-- A stock lasts `hold`, never longer than the count it was charged to, from the moment before it was asked for. What
-- is left then is given back, by a timer of the worker that ordered it (engines/prefetch/unit_returns.lua), or by the
-- next order. When a worker ends in peace (a reload), it gives back what it ordered; stocks of other workers stay as
-- they are. A call may give back its own units: into the stock they came from while that lasts, into the count after
-- that.
--
-- LAW (tests/nginx/engines/test_prefetch.py). Let N nginx use a key, each holding at most U of its units, on the way
-- out and on the way back included:
--   - over any span, at most N * U units more are admitted than the limit alone admits; of a fixed window, whose
--     stocks end with it, not one more (the proof stands in engines/layers/prefetch/engines.py);
--   - at most N * U units are kept from others, for at most `hold`.
-- Kept from others until the limit refills, and handed out by nobody, are: units of a worker that is killed while it
-- orders or gives back, and what it would have given back if nobody orders again within a hold time; units of an order
-- or a return that Redis did not answer; what is left of a stock at the moment when it is ended in one worker and
-- found too small for a call in another; and all that is held when nginx is stopped at once (TERM). Time is the
-- real time, the same in all workers. For one hold time after a limit was changed there may be U units under the former
-- limit, beside those under the new one.
--
-- Not prefetched: leaky bucket and smooth, which tell when calls go; slots; rules with a lockout or overrides; what is
-- aside; several charges at once; peeks; and a call that wants more than U. They go to the inner engine as they are. A
-- dict that is full takes nothing new, and nothing is thrown out of it for prefetched units.

local clock = require "resty.headgate.clock"
local returns = require "resty.headgate.engines.prefetch.unit_returns"
local stocks = require "resty.headgate.engines.prefetch.prefetched_units"

local M = {}

local HOT = 4 -- times what a call wants, within one hold time
local REMEMBERED = 4096 -- stocks of a hand that a worker knows
local KEPT = 5 -- seconds that a stock's number outlives it: until then it can be given back
local PROMPT = 0.05 -- seconds, where nobody says
local AHEAD = 1 -- seconds that an order is waited for that nobody waits for
local GRACE = 1 -- seconds that a flag outlasts the deadline of who set it

local floor, max, now, now_us = math.floor, math.max, clock.now, clock.wall_us
local facts_of, ended, STOCK = stocks.facts, returns.ended, stocks.STOCK

local Engine = {}
Engine.__index = Engine

function M.around(inner, dict)
  return setmetatable({
    inner = inner, dict = dict, returns = returns.new(inner, dict), ordered = 0,
  }, Engine)
end

-- All that this engine knows of a hand, put on the hand.
local function bind(hand)
  local terms, limit = hand.terms, hand.limit
  local ahead = not terms.lockout and not terms.overrides and not terms.aside and terms.prefetch
  local spread, rate = stocks.spread(limit)
  local under = hand.head .. limit.text .. ":"
  local own = {
    hand = hand, most = ahead and stocks.bound(limit, ahead.units) or 0, spread = spread, rate = rate,
    hold_us = ahead and ahead.hold_us, hold = ahead and ahead.hold_us / 1000000, stocks = {}, count = 0,
    name = "l:n:" .. under, left = "l:r:" .. under, flag = "l:o:" .. under,
  }
  hand.lending = own
  return own
end

local function remember(own, key, stock)
  if not own.stocks[key] then
    if own.count >= REMEMBERED then own.stocks, own.count = {}, 0 end
    own.count = own.count + 1
  end
  stock.own, stock.key = own, key
  own.stocks[key] = stock
  return stock
end

-- The key's stock, as the dict tells; nil if it has none.
local function latest(self, own, key)
  local text = self.dict:get(own.name .. key)
  if type(text) ~= "string" then return nil end
  local known = own.stocks[key]
  if known and known.text == text then return known end
  local stock = stocks.read(text)
  return stock and remember(own, key, stock)
end

-- Redis decides about the call alone; what it leaves is noted.
local function exactly(self, own, charges, by)
  local answers, word = self.inner:decide(charges, 1, by - now())
  if not answers then return nil, word end
  self.dict:safe_set(own.left .. charges[1].key, answers[1][2], 2 * own.hold)
  return answers, word
end

-- A name that no other stock has.
local function new_counter(self)
  local pid = ngx.worker.pid()
  if self.pid ~= pid then self.pid, self.since = pid, floor(now() * 1000) end
  self.ordered = self.ordered + 1
  return "l:u:" .. pid .. ":" .. string.format("%.0f", self.since) .. ":" .. self.ordered
end

-- On the dict, for all workers; nil and why if it cannot be.
local function put(self, own, key, stock)
  local done, why = self.dict:safe_add(stock.counter, stock.extra, own.hold + KEPT)
  if not done then return nil, why end
  done, why = self.returns:later(stock)
  if not done then return nil, why end
  done, why = self.dict:safe_set(own.name .. key, stock.text, 2 * own.hold)
  if not done then self.returns:finish(stock) end
  return done, why
end

-- Takes so many units at once, of which the extra is for the stock: facts, and the stock if they were allowed; or nil,
-- nil and trouble.
local function fetch(self, own, key, cost, extra, lately, by)
  local since_us = now_us()
  local charge = { hand = own.hand, key = key, cost = cost + extra }
  local answers, trouble = self.inner:decide({ charge }, 1, by - now())
  if not answers then return nil, nil, trouble end
  local facts = answers[1]
  self.dict:safe_set(own.left .. key, facts[2], 2 * own.hold)
  if facts[1] ~= 1 then return facts, nil end
  local lasts_us = facts[4] < own.hold_us and facts[4] or own.hold_us
  local stock = stocks.new {
    since_us = since_us, until_us = since_us + lasts_us, told = facts[2], reset_us = facts[4], at_us = facts[6],
    mark = facts[7], extra = extra, cost = cost, lately = lately, counter = new_counter(self),
  }
  stock.own, stock.key = own, key
  return facts, stock
end

-- Orders for a call that waits: whether the flag is still ours, then the answers or nil and trouble.
local function order(self, own, charges, extra, lately, by)
  local key, cost = charges[1].key, charges[1].cost
  local facts, stock, trouble = fetch(self, own, key, cost, extra, lately, by)
  if not facts then return true, nil, trouble end
  if not stock then return true, exactly(self, own, charges, by) end
  local mine = { stocks.receipt(own, stock, extra) }
  if now() < by + GRACE / 2 and put(self, own, key, stock) then
    remember(own, key, stock)
    return true, mine
  end
  return not self.returns:begin(stock, extra, own.flag .. key), mine
end

-- Orders while there still is something in stock, so that nobody waits; what is left then goes back.
local function replace(self, own, stock, cost)
  local dict, key, by = self.dict, stock.key, now() + AHEAD
  local current, left, remaining = latest(self, own, key), dict:get(stock.counter), dict:get(own.left .. key)
  if not current or current.counter ~= stock.counter or not left or ended(left) or not remaining then return end
  local lately = stocks.lately(stock, left, own.hold_us, now_us())
  local extra = stocks.extra(own.most - left, lately, remaining, cost, HOT)
  if extra <= 0 then return end
  local _, fresh = fetch(self, own, key, 0, extra, lately, by)
  if not fresh then return end
  if now() >= by + GRACE / 2 or not put(self, own, key, fresh) then return self.returns:give_back(fresh, extra) end
  remember(own, key, fresh)
  self.returns:give_back(stock, self.returns:finish(stock))
end

local function in_background(premature, self, own, stock, cost)
  if not premature then replace(self, own, stock, cost) end
  self.dict:delete(own.flag .. stock.key)
end

-- The stock is running low, or out of time: one worker orders, and each tries once.
local function ahead(self, own, stock, cost)
  local flag = own.flag .. stock.key
  stock.tried = true
  if not self.dict:safe_add(flag, true, AHEAD + GRACE) then return end
  if not ngx.timer.at(0, in_background, self, own, stock, cost) then self.dict:delete(flag) end
end

-- The facts of so many units from the stock; nil if it has not so many, or not any more.
local function from_stock(self, own, stock, cost)
  local at_us = now_us()
  if at_us < stock.since_us or at_us >= stock.until_us then return nil end
  local left = self.dict:incr(stock.counter, -cost)
  if not left then return nil end
  if left >= 0 then
    if (left <= stock.low or at_us >= stock.late_us) and not stock.tried then ahead(self, own, stock, cost) end
    return facts_of(own, stock, left, at_us)
  end
  self.dict:incr(stock.counter, cost)
  return nil
end

-- With the flag in hand: whether it still is, then the answers or nil and trouble.
local function flagged(self, own, charges, asked, remaining, by)
  local charge = charges[1]
  local key, cost = charge.key, charge.cost
  local stock, lately = latest(self, own, key), asked or 0
  if stock then
    local facts = from_stock(self, own, stock, cost)
    if facts then return true, { facts }, "unasked" end
    local left = self.returns:finish(stock)
    lately = stocks.lately(stock, left, own.hold_us, now_us())
    if left > 0 and self.returns:begin(stock, left, own.flag .. key) then
      return false, exactly(self, own, charges, by)
    end
  end
  local extra = stocks.extra(own.most, lately, remaining, cost, HOT)
  if extra > 0 then return order(self, own, charges, extra, lately, by) end
  if stock then self.dict:delete(own.name .. key) end
  return true, exactly(self, own, charges, by)
end

-- A key that is hot, and has nothing in stock. `asked`: how much was asked for, if it is counted.
local function hot(self, own, charges, asked, deadline)
  local dict, key, by = self.dict, charges[1].key, now() + deadline
  local remaining, flag = dict:get(own.left .. key), own.flag .. key
  if not remaining or remaining < 2 * charges[1].cost then return exactly(self, own, charges, by) end
  if not dict:safe_add(flag, true, deadline + GRACE) then return exactly(self, own, charges, by) end
  local ours, answers, trouble = flagged(self, own, charges, asked, remaining, by)
  if ours then dict:delete(flag) end
  return answers, trouble
end

-- Not in stock, as far as this worker knows.
local function ask(self, own, charges, deadline)
  local charge, dict = charges[1], self.dict
  local key, cost = charge.key, charge.cost
  local asked, why = dict:incr(own.name .. key, cost)
  if not asked and why ~= "not found" then
    local stock = latest(self, own, key)
    local facts = stock and from_stock(self, own, stock, cost)
    if facts then return { facts }, "unasked" end
    return hot(self, own, charges, nil, deadline)
  end
  if not asked then
    asked = cost
    dict:safe_add(own.name .. key, cost, own.hold)
  end
  if asked < (HOT - 1) * cost then return self.inner:decide(charges, 1, deadline) end
  if asked < HOT * cost then return exactly(self, own, charges, now() + deadline) end
  return hot(self, own, charges, asked, deadline)
end

function Engine:take(charge, deadline)
  local own, cost = charge.hand.lending or bind(charge.hand), charge.cost
  local from_here = cost > 0 and cost <= own.most
  local stock = from_here and own.stocks[charge.key]
  local facts = stock and from_stock(self, own, stock, cost)
  if facts then return facts, "unasked" end
  local answers, word
  if from_here then
    answers, word = ask(self, own, { charge }, deadline or PROMPT)
  else
    answers, word = self.inner:decide({ charge }, 1, deadline)
  end
  return answers and answers[1], word
end

function Engine:decide(charges, commit, deadline)
  if commit ~= 1 or charges[2] ~= nil then return self.inner:decide(charges, commit, deadline) end
  local facts, word = self:take(charges[1], deadline)
  return facts and { facts }, word
end

local function has(self, stock, cost)
  local at_us, left = now_us(), self.dict:get(stock.counter)
  return left ~= nil and left >= cost and stock.since_us <= at_us and at_us < stock.until_us
end

-- The answer to the first charge that nothing is in stock for, and that is refused without asking; nil if none is.
function Engine:refused(charges)
  for i, charge in ipairs(charges) do
    local stock = latest(self, charge.hand.lending or bind(charge.hand), charge.key)
    local found = not (stock and has(self, stock, charge.cost)) and self.inner:refused { charge }
    if found then return { [i] = found[1] } end
  end
end

-- How many units are left now that these are back; nil if they are not. While somebody orders they are not: an order
-- has been told how many there are, and all together may not be more than U.
local function into_stock(self, stock, units)
  local dict = self.dict
  local left = dict:incr(stock.counter, units)
  if not left or ended(left) then return nil end
  if not dict:get(stock.own.flag .. stock.key) then return max(0, left) end
  left = dict:incr(stock.counter, -units)
  if left >= 0 then return nil end
  if not ended(left) then dict:incr(stock.counter, units) end -- others have taken them meanwhile
  return 0 -- or somebody has ended the stock, and gives them back with the rest of it
end

-- Into the stock that the units came from; else into the count.
function Engine:refund(charge, facts, deadline)
  local stock = facts[STOCK]
  if not stock then return self.inner:refund(charge, facts, deadline) end
  local at_us = now_us()
  if stock.since_us <= at_us and at_us < stock.until_us then
    local left = into_stock(self, stock, charge.cost)
    if left then return facts_of(stock.own, stock, left, at_us) end
  end
  return self.inner:refund(charge, stocks.receipt(stock.own, stock, facts[2] - stock.told), deadline)
end

function Engine:acquire(charge, deadline) return self.inner:acquire(charge, deadline) end

function Engine:renew(charge, fence, deadline) return self.inner:renew(charge, fence, deadline) end

function Engine:release(charge, fence, deadline) return self.inner:release(charge, fence, deadline) end

function Engine:shard(key) return self.inner:shard(key) end

return M
