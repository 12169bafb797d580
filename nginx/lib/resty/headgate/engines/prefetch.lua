-- Prefetching: units of hot keys are fetched ahead from Redis, and handed out by this nginx without asking. It obeys
-- the law of engines/layers/prefetch/__init__.py; one nginx, all its workers together, is one process of that law.
--
-- Picture a kiosk that orders from a warehouse. What sells is ordered ahead, as much as was sold lately, and sold over
-- the counter; what does not sell goes back before it spoils. A fetch is a take of the call's cost and some extra, one
-- charge on Redis, of which the extra stays here as prefetched units.
--
-- On the dict, for each key of a bound limit:
--
--   l:n:  how many units were demanded, a number, while the key is cold: it ends a hold time after the first;
--         or, once it was prefetched, a line of text that describes the units (engines/prefetch/prefetched_units.lua)
--   l:u:  how many of these units are left: a counter of each fetch, changed by incr alone. A call that finds too few
--         puts back what it took and asks Redis; a counter that was closed is very low, and the worker that closed it
--         got the rest. No two calls can get the same unit, and no unit gets into the counter of another fetch
--   l:r:  the remaining units of the last reply, of keys that are getting hot
--   l:o:  a flag: a worker fetches or returns units. One at a time; all other calls ask Redis, exactly. It expires a
--         second after its deadline, so that a worker that was killed blocks nobody
--
-- A worker caches the descriptions of its keys' units, so a unit costs a table lookup and one incr. A cold key costs
-- one incr (the first time a second call, because incr alone would evict other entries when the dict is full).
--
-- Sizing. A key is cold until, within a hold time, HOT_FACTOR times the call's cost was demanded. Then the extra of a
-- fetch is the demand of the last hold time: at most U units (by default a tenth of what the limit holds at once), and
-- at most half of the remaining units of the last reply. So near the edge every call is a take, decided exactly; a
-- fetch that is refused all the same is repeated for the call alone.
--
-- When a quarter of the units or of their time is left, the next ones are fetched in a timer, and replace them; both
-- together are never more than U. So a key that stays hot makes no call wait.
--
-- Prefetched units last `hold`, never longer than the count they were charged to, from the moment before the request.
-- The rest is then refunded, by a timer of the worker that fetched them (engines/prefetch/unit_returns.lua), or by the
-- next fetch. When a worker exits gracefully (a reload), it refunds what it fetched; units of other workers stay as
-- they are. A call may refund its own units: to the counter they came from while that lasts, to the count in Redis
-- after that.
--
-- LAW (tests/nginx/engines/test_prefetch.py). Let N nginx use a key, each holding at most U of its units, including
-- those on the way to and from Redis:
--   - over any span, at most N * U units more are admitted than the limit alone admits; of a fixed window, whose units
--     end with it, not one more (the proof is in engines/layers/prefetch/__init__.py);
--   - at most N * U units are withheld from others, for at most `hold`.
-- The following are withheld until the limit refills, and handed out by no one: units of a worker that is killed while
-- it fetches or refunds, and the units it would have refunded if nothing is fetched again within a hold time; units of
-- a fetch or a refund that Redis did not answer; the rest of units at the moment when one worker closes them and a call
-- in another finds too few; and all units that are held when nginx is stopped at once (TERM). Time is the real time,
-- the same in all workers. For one hold time after a limit was changed there may be U units under the previous limit,
-- beside those under the new one.
--
-- Not prefetched: leaky bucket and smooth, which schedule calls; slots; rules with a lockout or overrides; shadows;
-- several charges at once; peeks; and a call that wants more than U. They go to the inner engine as they are. A full
-- dict accepts no new keys, and nothing is evicted from it for prefetched units.

local clock = require "resty.headgate.clock"
local prefetched_units = require "resty.headgate.engines.prefetch.prefetched_units"
local unit_returns = require "resty.headgate.engines.prefetch.unit_returns"

local M = {}

local ALL_END_TOGETHER = { 0, 1 } -- the units of one charge
local HOT_FACTOR = 4 -- demand within one hold time, in costs of the call
local MAX_CACHED_KEYS = 4096 -- of one bound limit, in one worker
local COUNTER_GRACE_S = 5 -- that a counter outlives its units: until then they can be refunded
local DEFAULT_DEADLINE_S = 0.05 -- where the caller has none
local BACKGROUND_TIMEOUT_S = 1 -- of a fetch in a timer
local FLAG_GRACE_S = 1 -- that a flag outlasts the deadline of its worker

local floor, max, now, now_us = math.floor, math.max, clock.now, clock.wall_us
local outcome_of, is_ended, PREFETCHED = prefetched_units.outcome, unit_returns.is_ended, prefetched_units.PREFETCHED

local Engine = {}
Engine.__index = Engine

function M.around(inner, dict)
  return setmetatable({
    inner = inner, dict = dict, returns = unit_returns.new(inner, dict), fetch_count = 0,
  }, Engine)
end

-- Creates the prefetcher of a bound limit, and stores it there.
local function bind(bound_limit)
  local options, limit = bound_limit.options, bound_limit.limit
  local enabled = not options.lockout and not options.overrides and not options.pausable and not options.shadow
    and options.prefetch
  local drain = limit.drain or ALL_END_TOGETHER
  local key_prefix = bound_limit.head .. limit.text .. ":"
  local prefetcher = {
    bound_limit = bound_limit, drain_period_us = drain[1], drain_amount = drain[2],
    prefetched = {}, count = 0,
    max_units = enabled and prefetched_units.max_units(limit, enabled.units) or 0,
    hold_us = enabled and enabled.hold_us, hold_s = enabled and enabled.hold_us / 1000000,
    demand_name = "l:n:" .. key_prefix, remaining_name = "l:r:" .. key_prefix, flag_name = "l:o:" .. key_prefix,
  }
  bound_limit.prefetcher = prefetcher
  return prefetcher
end

local function cache_locally(prefetcher, key, prefetched)
  if not prefetcher.prefetched[key] then
    if prefetcher.count >= MAX_CACHED_KEYS then prefetcher.prefetched, prefetcher.count = {}, 0 end
    prefetcher.count = prefetcher.count + 1
  end
  prefetched.prefetcher, prefetched.key = prefetcher, key
  prefetcher.prefetched[key] = prefetched
  return prefetched
end

-- Returns the prefetched units of a key, as described in the dict; nil if it has none.
local function read_prefetched(self, prefetcher, key)
  local text = self.dict:get(prefetcher.demand_name .. key)
  if type(text) ~= "string" then return nil end
  local cached = prefetcher.prefetched[key]
  if cached and cached.text == text then return cached end
  local prefetched = prefetched_units.read(text)
  return prefetched and cache_locally(prefetcher, key, prefetched)
end

-- Takes the units of the call alone from Redis, and notes how many remain.
local function take_exactly(self, prefetcher, charges, deadline_at)
  local outcomes, note = self.inner:decide(charges, 1, deadline_at - now())
  if not outcomes then return nil, note end
  self.dict:safe_set(prefetcher.remaining_name .. charges[1].key, outcomes[1][2], 2 * prefetcher.hold_s)
  return outcomes, note
end

-- Returns a unique name for a counter.
local function new_counter_name(self)
  local pid = ngx.worker.pid()
  if self.pid ~= pid then self.pid, self.since = pid, floor(now() * 1000) end
  self.fetch_count = self.fetch_count + 1
  return "l:u:" .. pid .. ":" .. string.format("%.0f", self.since) .. ":" .. self.fetch_count
end

-- Publishes prefetched units on the dict, for all workers; nil and why if it fails.
local function publish(self, prefetcher, key, prefetched)
  local stored, why = self.dict:safe_add(prefetched.counter, prefetched.extra, prefetcher.hold_s + COUNTER_GRACE_S)
  if not stored then return nil, why end
  stored, why = self.returns:schedule(prefetched)
  if not stored then return nil, why end
  stored, why = self.dict:safe_set(prefetcher.demand_name .. key, prefetched.text, 2 * prefetcher.hold_s)
  if not stored then self.returns:close(prefetched) end
  return stored, why
end

-- Takes cost + extra units from Redis at once. Returns the outcome, and the prefetched units if it was allowed; or nil,
-- nil and a failure.
local function fetch(self, prefetcher, key, cost, extra, recent_demand, deadline_at)
  local since_us = now_us()
  local charge = { bound_limit = prefetcher.bound_limit, key = key, cost = cost + extra }
  local outcomes, failure = self.inner:decide({ charge }, 1, deadline_at - now())
  if not outcomes then return nil, nil, failure end
  local outcome = outcomes[1]
  self.dict:safe_set(prefetcher.remaining_name .. key, outcome[2], 2 * prefetcher.hold_s)
  if outcome[1] ~= 1 then return outcome, nil end
  local lifetime_us = outcome[4] < prefetcher.hold_us and outcome[4] or prefetcher.hold_us
  local prefetched = prefetched_units.new {
    since_us = since_us, until_us = since_us + lifetime_us, remaining = outcome[2], reset_us = outcome[4],
    at_us = outcome[6], mark = outcome[7], extra = extra, cost = cost, recent_demand = recent_demand,
    counter = new_counter_name(self),
  }
  prefetched.prefetcher, prefetched.key = prefetcher, key
  return outcome, prefetched
end

-- Fetches units for a call that waits. Returns whether the flag is still ours, then the outcomes or nil and a failure.
local function fetch_for_call(self, prefetcher, charges, extra, recent_demand, deadline_at)
  local key, cost = charges[1].key, charges[1].cost
  local outcome, prefetched, failure = fetch(self, prefetcher, key, cost, extra, recent_demand, deadline_at)
  if not outcome then return true, nil, failure end
  if not prefetched then return true, take_exactly(self, prefetcher, charges, deadline_at) end
  local first_outcome = { prefetched_units.receipt(prefetcher, prefetched, extra) }
  if now() < deadline_at + FLAG_GRACE_S / 2 and publish(self, prefetcher, key, prefetched) then
    cache_locally(prefetcher, key, prefetched)
    return true, first_outcome
  end
  return not self.returns:return_in_background(prefetched, extra, prefetcher.flag_name .. key), first_outcome
end

-- Fetches the next units while there still are some, so that no call waits; the rest of the old ones is refunded.
local function refill(self, prefetcher, prefetched, cost)
  local dict, key, deadline_at = self.dict, prefetched.key, now() + BACKGROUND_TIMEOUT_S
  local current = read_prefetched(self, prefetcher, key)
  local units_left, remaining = dict:get(prefetched.counter), dict:get(prefetcher.remaining_name .. key)
  if not current or current.counter ~= prefetched.counter then return end
  if not units_left or is_ended(units_left) or not remaining then return end
  local recent_demand = prefetched_units.recent_demand(prefetched, units_left, prefetcher.hold_us, now_us())
  local extra = prefetched_units.extra(prefetcher.max_units - units_left, recent_demand, remaining, cost, HOT_FACTOR)
  if extra <= 0 then return end
  local _, refilled = fetch(self, prefetcher, key, 0, extra, recent_demand, deadline_at)
  if not refilled then return end
  if now() >= deadline_at + FLAG_GRACE_S / 2 or not publish(self, prefetcher, key, refilled) then
    return self.returns:return_units(refilled, extra)
  end
  cache_locally(prefetcher, key, refilled)
  self.returns:return_units(prefetched, self.returns:close(prefetched))
end

local function refill_in_background(premature, self, prefetcher, prefetched, cost)
  if not premature then refill(self, prefetcher, prefetched, cost) end
  self.dict:delete(prefetcher.flag_name .. prefetched.key)
end

-- Starts a refill in a timer, because few units or little time is left: one worker does, and each tries once.
local function start_refill(self, prefetcher, prefetched, cost)
  local flag = prefetcher.flag_name .. prefetched.key
  prefetched.refill_tried = true
  if not self.dict:safe_add(flag, true, BACKGROUND_TIMEOUT_S + FLAG_GRACE_S) then return end
  if not ngx.timer.at(0, refill_in_background, self, prefetcher, prefetched, cost) then self.dict:delete(flag) end
end

-- Takes prefetched units, and returns the outcome; nil if there are too few, or they have ended.
local function take_prefetched(self, prefetcher, prefetched, cost)
  local at_us = now_us()
  if at_us < prefetched.since_us or at_us >= prefetched.until_us then return nil end
  local units_left = self.dict:incr(prefetched.counter, -cost)
  if not units_left then return nil end
  if units_left >= 0 then
    if (units_left <= prefetched.refill_below or at_us >= prefetched.refill_at_us) and not prefetched.refill_tried then
      start_refill(self, prefetcher, prefetched, cost)
    end
    return outcome_of(prefetcher, prefetched, units_left, at_us)
  end
  self.dict:incr(prefetched.counter, cost)
  return nil
end

-- Decides a call while we hold the flag. Returns whether we still hold it, then the outcomes or nil and a failure.
local function fetch_with_flag(self, prefetcher, charges, demand, remaining, deadline_at)
  local charge = charges[1]
  local key, cost = charge.key, charge.cost
  local prefetched, recent_demand = read_prefetched(self, prefetcher, key), demand or 0
  if prefetched then
    local outcome = take_prefetched(self, prefetcher, prefetched, cost)
    if outcome then return true, { outcome }, "unasked" end
    local units_left = self.returns:close(prefetched)
    recent_demand = prefetched_units.recent_demand(prefetched, units_left, prefetcher.hold_us, now_us())
    if units_left > 0 and self.returns:return_in_background(prefetched, units_left, prefetcher.flag_name .. key) then
      return false, take_exactly(self, prefetcher, charges, deadline_at)
    end
  end
  local extra = prefetched_units.extra(prefetcher.max_units, recent_demand, remaining, cost, HOT_FACTOR)
  if extra > 0 then return fetch_for_call(self, prefetcher, charges, extra, recent_demand, deadline_at) end
  if prefetched then self.dict:delete(prefetcher.demand_name .. key) end
  return true, take_exactly(self, prefetcher, charges, deadline_at)
end

-- Decides a call of a hot key without prefetched units. `demand`: the units demanded lately, if they are counted.
local function take_hot(self, prefetcher, charges, demand, deadline)
  local dict, key, deadline_at = self.dict, charges[1].key, now() + deadline
  local remaining, flag = dict:get(prefetcher.remaining_name .. key), prefetcher.flag_name .. key
  if not remaining or remaining < 2 * charges[1].cost or not dict:safe_add(flag, true, deadline + FLAG_GRACE_S) then
    return take_exactly(self, prefetcher, charges, deadline_at)
  end
  local has_flag, outcomes, failure = fetch_with_flag(self, prefetcher, charges, demand, remaining, deadline_at)
  if has_flag then dict:delete(flag) end
  return outcomes, failure
end

-- Decides a call for which this worker has cached no prefetched units.
local function take_uncached(self, prefetcher, charges, deadline)
  local charge, dict = charges[1], self.dict
  local key, cost = charge.key, charge.cost
  local demand, why = dict:incr(prefetcher.demand_name .. key, cost)
  if not demand and why ~= "not found" then
    local prefetched = read_prefetched(self, prefetcher, key)
    local outcome = prefetched and take_prefetched(self, prefetcher, prefetched, cost)
    if outcome then return { outcome }, "unasked" end
    return take_hot(self, prefetcher, charges, nil, deadline)
  end
  if not demand then
    demand = cost
    dict:safe_add(prefetcher.demand_name .. key, cost, prefetcher.hold_s)
  end
  if demand < (HOT_FACTOR - 1) * cost then return self.inner:decide(charges, 1, deadline) end
  if demand < HOT_FACTOR * cost then return take_exactly(self, prefetcher, charges, now() + deadline) end
  return take_hot(self, prefetcher, charges, demand, deadline)
end

function Engine:take(charge, deadline)
  local prefetcher, cost = charge.bound_limit.prefetcher or bind(charge.bound_limit), charge.cost
  local may_prefetch = cost > 0 and cost <= prefetcher.max_units
  local prefetched = may_prefetch and prefetcher.prefetched[charge.key]
  local outcome = prefetched and take_prefetched(self, prefetcher, prefetched, cost)
  if outcome then return outcome, "unasked" end
  local outcomes, note
  if may_prefetch then
    outcomes, note = take_uncached(self, prefetcher, { charge }, deadline or DEFAULT_DEADLINE_S)
  else
    outcomes, note = self.inner:decide({ charge }, 1, deadline)
  end
  return outcomes and outcomes[1], note
end

function Engine:decide(charges, commit, deadline)
  if commit ~= 1 or charges[2] ~= nil then return self.inner:decide(charges, commit, deadline) end
  local outcome, note = self:take(charges[1], deadline)
  return outcome and { outcome }, note
end

local function has_units(self, prefetched, cost)
  local at_us, units_left = now_us(), self.dict:get(prefetched.counter)
  return units_left ~= nil and units_left >= cost and prefetched.since_us <= at_us and at_us < prefetched.until_us
end

-- Returns the outcome of the first charge without prefetched units that is refused without asking; nil if none is.
function Engine:refused(charges)
  for i, charge in ipairs(charges) do
    local prefetched = read_prefetched(self, charge.bound_limit.prefetcher or bind(charge.bound_limit), charge.key)
    local refusal = not (prefetched and has_units(self, prefetched, charge.cost)) and self.inner:refused { charge }
    if refusal then return { [i] = refusal[1] } end
  end
end

-- Returns units to their counter. Returns how many are left; nil if they were not returned. While a fetch is on its way
-- they are not: it was sized by the units that are left, and all together may not be more than U.
local function return_to_prefetched(self, prefetched, units)
  local dict = self.dict
  local units_left = dict:incr(prefetched.counter, units)
  if not units_left or is_ended(units_left) then return nil end
  if not dict:get(prefetched.prefetcher.flag_name .. prefetched.key) then return max(0, units_left) end
  units_left = dict:incr(prefetched.counter, -units)
  if units_left >= 0 then return nil end
  if not is_ended(units_left) then dict:incr(prefetched.counter, units) end -- other calls have taken them meanwhile
  return 0 -- or another worker has closed the counter, and refunds them with the rest
end

-- Refunds a charge: to the counter that its units came from; else to the count in Redis.
function Engine:refund(charge, outcome, deadline)
  local prefetched = outcome[PREFETCHED]
  if not prefetched then return self.inner:refund(charge, outcome, deadline) end
  local at_us = now_us()
  if prefetched.since_us <= at_us and at_us < prefetched.until_us then
    local units_left = return_to_prefetched(self, prefetched, charge.cost)
    if units_left then return outcome_of(prefetched.prefetcher, prefetched, units_left, at_us) end
  end
  local units_left = outcome[2] - prefetched.remaining
  return self.inner:refund(charge, prefetched_units.receipt(prefetched.prefetcher, prefetched, units_left), deadline)
end

function Engine:acquire(charge, deadline) return self.inner:acquire(charge, deadline) end

function Engine:renew(charge, fence, deadline) return self.inner:renew(charge, fence, deadline) end

function Engine:release(charge, fence, deadline) return self.inner:release(charge, fence, deadline) end

function Engine:shard(key) return self.inner:shard(key) end

return M
