-- Circuit breakers: when to stop asking Redis, and when to ask it again, so that an outage is waited for once, and not
-- by each request.
--
-- One failed request opens a breaker; while it is open, no call asks Redis. A timer probes it in the background, after
-- 100 ms, then after twice that, up to a second: it writes a key that lives for a second, because a server that reads
-- but takes no writes cannot decide. When the probe is answered, calls try again. The first of them that is answered
-- closes the breaker; one that fails opens it again, for longer. A breaker that opens soon after it closed opens for
-- longer, too.
--
--        one request failed             the probe was answered
--   CLOSED ---------------------> OPEN --------------------------> TRYING
--     ^                            ^      a request failed            |
--     |                            +---------------------------------+
--     +--------------------------------------------------------------+ a request was answered
--
-- There is one for each shard of the server (a cluster's node), in each worker. A timeout concerns only calls that have
-- no more time than the one that waited: a rule with a longer deadline still asks, once. An error about one key, or
-- about the request itself, opens nothing: it costs no time.
--
-- Laws (tests/nginx/engines/test_fallback*.py):
--   - in each worker and for each length of deadline, only those calls wait in an outage that had asked before the
--     first of them failed;
--   - the log has one line when a breaker leaves CLOSED and one when it is back, whatever happens in between;
--   - a reply or a failure of a request that was sent before the breaker last changed changes nothing.

local commands = require "resty.headgate.engines.redis.commands"
local keys = require "resty.headgate.engines.redis.keys"

local M = {}

local CLOSED, OPEN, TRYING = "closed", "open", "trying"
local FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 1.0 -- between two probes
local NEW_OUTAGE_AFTER_S = 10 -- until then the pause keeps growing
local LOG_INTERVAL_S = 60 -- between two lines about errors that open nothing

local huge, max, min = math.huge, math.max, math.min
local now, timer_at = require("resty.headgate.clock").now, ngx.timer.at

local Breakers, Breaker = {}, {}
Breakers.__index, Breaker.__index = Breakers, Breaker

local by_server = setmetatable({}, { __mode = "k" })

-- Returns all breakers of a server: the same for all engines that use it. `server` is a Redis engine.
function M.for_server(server)
  local result = by_server[server]
  if not result then
    result = { server = server, by_shard = {}, all_closed = true, generation = 0, unanswered = 0, logged_at = -huge }
    setmetatable(result, Breakers)
    by_server[server] = result
  end
  return result
end

-- Returns the breaker of the shard that decides for a key.
function Breakers:for_key(key)
  local name = self.server:shard(key)
  local result = self.by_shard[name]
  if not result then
    result = { all = self, name = name, phase = CLOSED, generation = 0, pause = 0, closed_at = -huge }
    setmetatable(result, Breaker)
    self.by_shard[name] = result
  end
  return result
end

-- Updates whether all breakers are closed.
local function update_all_closed(self)
  self.all_closed = true
  for _, breaker in pairs(self.by_shard) do
    if breaker.phase ~= CLOSED then self.all_closed = false end
  end
end

-- Logs a message at most once a minute.
function Breakers:log_rarely(message)
  local at = now()
  if at >= self.logged_at and at - self.logged_at < LOG_INTERVAL_S then return end
  self.logged_at = at
  ngx.log(ngx.ERR, "headgate: ", message)
end

local function is_ignored(failure)
  return failure.kind == "wrong" or failure.kind == "corrupt"
end

-- Handles the failure of a request about these charges, sent at that generation.
function Breakers:failed(charges, failure, deadline, generation)
  if is_ignored(failure) then return self:log_rarely(failure.text) end
  if failure.key then return self:for_key(failure.key):failed(failure.key, failure, deadline, generation) end
  for _, charge in ipairs(charges) do self:for_key(charge.key):failed(charge.key, failure, deadline, generation) end
end

function Breakers:answered(charges, outcomes, generation)
  for i, charge in ipairs(charges) do
    if not outcomes[i].degraded then self:for_key(charge.key):answered(generation) end
  end
end

-- Returns the timeout of a request in seconds.
function Breakers:timeout_of(deadline) return min(deadline or huge, self.server.deadline) end

-- Returns whether a call with this deadline should ask.
function Breaker:passes(deadline)
  if self.phase ~= OPEN then return true end
  if not self.probe_scheduled then self:schedule_probe() end
  return self.all:timeout_of(deadline) > self.failed_timeout
end

local function set_phase(self, phase)
  local all = self.all
  all.generation = all.generation + 1
  self.phase, self.generation = phase, all.generation
  update_all_closed(all)
end

function Breaker:failed(key, failure, deadline, generation)
  if generation < self.generation then return end
  local timeout = self.all:timeout_of(deadline)
  local failed_timeout = failure.kind == "timeout" and timeout or huge
  self.failure = failure
  if self.phase == OPEN then
    self.failed_timeout, self.timeout = max(self.failed_timeout, failed_timeout), min(self.timeout, timeout)
    return
  end
  local at = now()
  if self.phase == CLOSED then
    ngx.log(ngx.ERR, "headgate: each rule does what its fallback says until Redis answers again. ", failure.text)
    self.opened_at, self.unanswered = at, self.all.unanswered
    if at < self.closed_at or at - self.closed_at > NEW_OUTAGE_AFTER_S then self.pause = 0 end
  end
  self.pause = self.pause == 0 and FIRST_PAUSE_S or min(2 * self.pause, MAX_PAUSE_S)
  self.failed_timeout, self.timeout, self.key = failed_timeout, timeout, key
  set_phase(self, OPEN)
  self:schedule_probe()
end

local function close(self)
  self.closed_at = now()
  set_phase(self, CLOSED)
  local text = "headgate: Redis at %s is back, after %.1f s and %d decisions without it."
  local server_name = self.name ~= "" and self.name or self.all.server.text
  local unanswered = self.all.unanswered - self.unanswered
  ngx.log(ngx.WARN, string.format(text, server_name, self.closed_at - self.opened_at, unanswered))
end

function Breaker:answered(generation)
  if self.phase == TRYING and generation >= self.generation then close(self) end
end

-- Writes a key to the shard of the failed request, with the same timeout.
local function probe(self)
  local server, tag = self.all.server, commands.escaped(self.key)
  return server:command({ "SET", keys.probe(server.prefix, tag), "1", "PX", "1000" }, tag, self.timeout)
end

local function run_probe(premature, self)
  if premature then return end
  local ok, reply, failure = pcall(probe, self)
  if ok and reply ~= nil then
    self.probe_scheduled = false
    set_phase(self, TRYING)
    -- Another node owns the key by now, so no call would try here.
    if self.all.server:shard(self.key) ~= self.name then close(self) end
    return
  end
  self.pause, self.failure = min(2 * self.pause, MAX_PAUSE_S), ok and failure or self.failure
  self:schedule_probe()
  if not ok then ngx.log(ngx.ERR, "headgate: ", reply) end
end

-- Schedules the next probe. If no timer is available now, the next call tries again.
function Breaker:schedule_probe() self.probe_scheduled = timer_at(self.pause, run_probe, self) and true or false end

return M
