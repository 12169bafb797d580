-- The shares of this nginx: what they admitted alone, and how Redis is charged with it after the outage. The twin of
-- engines/layers/fallback/settlement.py; the law is in docs/explanation/outages.md.
--
-- The account of a count is a number in the shared dict, for all workers: u:<count> is the units that the share alone
-- admitted, and Redis was not charged with yet. It ends with the share's own count: what that has forgotten, Redis
-- would have forgotten too. Before Redis decides about a count again, the worker that asks settles it; counts that
-- nobody uses are settled by a timer of the worker that noted them.
--
-- Laws (tests/nginx/engines/test_settlement.py):
--   - of all workers one settles an account, once: where no reply comes, Redis may have been charged all the same;
--   - Redis is charged with what the share still holds, or with as much of it as fits;
--   - where the dict has no room for an account, its units are not settled; nor are those of a worker that was killed.

local clock = require "resty.headgate.clock"
local commands = require "resty.headgate.engines.redis.commands"
local keys = require "resty.headgate.engines.redis.keys"

local M = {}

local MAX_NOTED = 10000 -- counts that a worker settles by itself
local FIRST_PAUSE_S, PAUSE_S = 0.1, 0.25 -- of the timer, while Redis does not answer
local TIMEOUT_S = 1 -- of a request in the timer
local SHARE_TIMEOUT_S = 0.05
local MIN_TTL_S, GRACE_S = 1, 1
local PREFIX = "u:"

local max, min, ceil, now_us, timer_at = math.max, math.min, math.ceil, clock.wall_us, ngx.timer.at

local Settlement = {}
Settlement.__index = Settlement

-- `try(charge, action)`: calls the action if the breaker lets it ask, and tells the breaker about it.
function M.new(server, shared_engine, breakers, try)
  return setmetatable({
    server = server, shared_engine = shared_engine, dict = shared_engine.dict, breakers = breakers, try = try,
    noted = {}, noted_count = 0, has_timer = false,
  }, Settlement)
end

local function charge_of(charge, cost) return { bound_limit = charge.bound_limit, key = charge.key, cost = cost } end

local function account_of(share_charge) return PREFIX .. share_charge.bound_limit.head .. share_charge.key end

-- Returns the units that a share holds, from its outcome; rounded up.
local function units_in_use(limit, outcome)
  if limit.interval_us then return ceil(max(0, outcome[3]) / limit.interval_us) end
  return max(0, limit.fresh - outcome[2])
end

-- Notes that a share alone admitted a charge. `outcome` is the share's.
function Settlement:note(charge, outcome)
  if charge.cost <= 0 then return end
  local dict, name = self.dict, account_of(charge.share_charge)
  local ttl_s = max(MIN_TTL_S, outcome[4] / 1000000) + GRACE_S
  if dict:incr(name, charge.cost) then
    dict:expire(name, ttl_s)
  else
    dict:safe_add(name, charge.cost, ttl_s)
  end
  if not self.noted[name] and self.noted_count < MAX_NOTED then
    self.noted[name], self.noted_count = charge, self.noted_count + 1
  end
  self.breakers:note_unsettled()
  self:start_timer(FIRST_PAUSE_S)
end

-- Removes units that were refunded to the share.
function Settlement:reduce(share_charge, units)
  local name = account_of(share_charge)
  local left = units > 0 and self.dict:incr(name, -units)
  if left and left < 0 then self.dict:incr(name, -left) end
end

-- Takes all units of an account; 0 if another worker has.
local function take(self, name)
  local units = self.dict:get(name)
  if not units or units <= 0 then return 0 end
  local left = self.dict:incr(name, -units)
  if left and left >= 0 then return units end
  if left then self.dict:incr(name, units) end
  return 0
end

function Settlement:is_settled(charge)
  local units = self.dict:get(account_of(charge.share_charge))
  return not units or units <= 0
end

-- Checks that Redis can decide about a charge: it takes a write (of a key that lives for a second), and it runs the
-- script, in a peek. Returns the peek's outcome; or nil and a Failure.
function Settlement:probe(charge, deadline)
  local server, tag = self.server, commands.escaped(charge.key)
  local reply, failure = server:command({ "SET", keys.probe(server.prefix, tag), "1", "PX", "1000" }, tag, deadline)
  if reply == nil then return nil, failure end
  local outcomes
  outcomes, failure = server:decide({ charge_of(charge, 0) }, 0, deadline)
  return outcomes and outcomes[1], failure
end

-- Charges Redis with units; with what remains, if they do not fit.
local function charge_units(self, charge, units, deadline)
  local outcomes, failure = self.server:decide({ charge_of(charge, units) }, 1, deadline)
  if not outcomes then return nil, failure end
  local outcome = outcomes[1]
  if outcome[1] == 1 or outcome[2] <= 0 then return true end
  outcomes, failure = self.server:decide({ charge_of(charge, outcome[2]) }, 1, deadline)
  return outcomes and true, failure
end

-- Settles the account of a charge, before Redis decides about its count. Returns whether it is settled; nil and a
-- Failure if Redis does not answer.
--
-- A probe first checks that Redis is there, because settling is done once. A caller cannot wait long: if the probe
-- takes more than max_wait_us, the timer settles the account, and this returns false.
function Settlement:settle(charge, deadline, max_wait_us)
  if self:is_settled(charge) then return true end
  local share_charge, started_us = charge.share_charge, now_us()
  local peeked, failure = self:probe(charge, deadline)
  if not peeked then return nil, failure end
  if max_wait_us and now_us() - started_us > max_wait_us then return self:is_settled(charge) end
  local units = take(self, account_of(share_charge))
  local held = units > 0 and self.shared_engine:decide({ charge_of(share_charge, 0) }, 0, SHARE_TIMEOUT_S)
  if held then units = min(units, units_in_use(share_charge.bound_limit.limit, held[1])) end
  if charge.bound_limit.options.lockout then units = min(units, peeked[2]) end -- a refusal would count towards it
  if units <= 0 then return true end
  return charge_units(self, charge, units, deadline)
end

-- Settles what this worker has noted, one account after the other, until Redis does not answer.
local function settle_noted(self)
  while true do
    local name, charge = next(self.noted)
    if not name then return end
    self.breakers:note_unsettled()
    self.noted[name] = nil -- it may be noted again meanwhile
    local is_settled = self:is_settled(charge)
      or self.try(charge, function() return self:settle(charge, TIMEOUT_S) end)
    if not is_settled then
      self.noted[name] = charge
      return
    end
    self.noted_count = self.noted_count - 1
  end
end

local function on_timer(premature, self)
  self.has_timer = false
  local ok, why = pcall(settle_noted, self)
  if not ok then ngx.log(ngx.ERR, "headgate: ", why) end
  if next(self.noted) and not premature then
    self.breakers:note_unsettled()
    self:start_timer(PAUSE_S)
  end
end

function Settlement:start_timer(seconds)
  if not self.has_timer then self.has_timer = timer_at(seconds, on_timer, self) and true or false end
end

return M
