-- The breakers of a server's shards (a cluster's nodes; a single server is one), shared by all workers.
--
-- They are in the shared dict, so three failures of any workers open one, and of all workers one call probes:
--
--   b:s:<shard>   the breaker, since when its shard is down, and how many decisions were made without Redis by then:
--                 seven doubles
--   b:degraded    how many decisions were made without Redis
--   b:troubled    how many breakers are not closed, or have counted a failure
--   b:unsettled   some worker has accounts to settle
--   b:open, b:opened   how many shards are down now; how often one went down
--   b:down_ms     how long shards were down, in milliseconds: outages that have ended
--   b:since_ms    the sum of the instants since which shards are down now
--
-- While nothing is wrong, a worker reads two entries of the dict for each millisecond of its clock. A change is made
-- under a lock of the dict. Where the dict has no room, each worker has breakers of its own.
--
-- Laws (tests/nginx/engines/test_fallback*.py): the log has one line when a breaker opens and one when it has closed,
-- of all workers together, whatever happens in between.

local breaker = require "resty.headgate.engines.fallback.breaker"
local clock = require "resty.headgate.clock"
local ffi = require "ffi"
local lock = require "resty.headgate.engines.shared.lock"

local M = {}

local CLOSED, OPEN, PROBING, SETTLING = breaker.CLOSED, breaker.OPEN, breaker.PROBING, breaker.SETTLING
local SETTLE_US = 1000000 -- in which a call must pass both, its share and Redis
local LOCK_TIMEOUT_S = 0.01
local UNSETTLED_TTL_S = 2 -- that every worker looks for accounts; a worker that has some renews it
local LOG_INTERVAL_S = 60 -- between two lines about errors that open nothing
local PREFIX, DEGRADED, TROUBLED, UNSETTLED = "b:s:", "b:degraded", "b:troubled", "b:unsettled"
local OPEN_COUNT, OPENED, DOWN_MS, SINCE_MS = "b:open", "b:opened", "b:down_ms", "b:since_ms"
local FIELDS = { "phase", "failures", "pause_us", "since_us", "until_us", "down_since_us", "degraded_before" }
local ENTRY_BYTES = #FIELDS * 8
local CONST_DOUBLES = ffi.typeof("const double *")

local floor, max = math.floor, math.max
local cast, text_of, now, now_us = ffi.cast, ffi.string, clock.now, clock.wall_us
local entry = ffi.new("double[?]", #FIELDS)

local Breakers = {}
Breakers.__index = Breakers

local by_server = setmetatable({}, { __mode = "k" })

-- Returns the breakers of a server: the same for all engines that use it. `server` is a Redis engine.
function M.for_server(server, dict)
  local result = by_server[server]
  if not result then
    result = setmetatable({
      server = server, dict = dict, local_states = {}, checked_at = -1, in_trouble = false, logged_at = -math.huge,
    }, Breakers)
    dict:safe_add(DEGRADED, 0)
    for _, name in ipairs { TROUBLED, OPEN_COUNT, OPENED, DOWN_MS, SINCE_MS } do dict:safe_add(name, 0) end
    by_server[server] = result
  end
  return result
end

local function is_in_trouble(self)
  return self.dict:get(TROUBLED) ~= 0 or self.dict:get(UNSETTLED) ~= nil or next(self.local_states) ~= nil
end

-- Returns whether every breaker is closed, without failures, and nothing is unsettled.
function Breakers:are_closed()
  local at = now()
  if at ~= self.checked_at then self.checked_at, self.in_trouble = at, is_in_trouble(self) end
  return not self.in_trouble
end

-- Makes all workers look for accounts before they ask Redis.
function Breakers:note_unsettled()
  self.dict:safe_set(UNSETTLED, 1, UNSETTLED_TTL_S)
  self.checked_at = -1
end

local function is_healthy(state) return state.phase == CLOSED and state.failures == 0 end

local function load(self, name)
  local text = self.local_states[name] or self.dict:get(PREFIX .. name)
  if not text then return breaker.NEW, 0, 0 end
  local stored, state = cast(CONST_DOUBLES, text), {}
  for i = 1, 5 do state[FIELDS[i]] = stored[i - 1] end
  return state, stored[5], stored[6]
end

local function save(self, name, state, down_since_us, degraded_before)
  for i = 1, 5 do entry[i - 1] = state[FIELDS[i]] end
  entry[5], entry[6] = down_since_us, degraded_before
  local text = text_of(entry, ENTRY_BYTES)
  local is_stored = self.dict:safe_set(PREFIX .. name, text)
  self.local_states[name] = not is_stored and not is_healthy(state) and text or nil
end

function Breakers:degraded_count() return self.dict:get(DEGRADED) or 0 end

-- Counts a decision without Redis.
function Breakers:count_degraded() self.dict:incr(DEGRADED, 1) end

local function log_back(self, name, down_since_us, degraded_before, at_us)
  local text = "headgate: Redis at %s answers again after %.1f s; %.0f calls were decided as their rules say."
  local server_name = name ~= "" and name or self.server.text
  local degraded = self:degraded_count() - degraded_before
  ngx.log(ngx.WARN, string.format(text, server_name, (at_us - down_since_us) / 1000000, degraded))
end

-- Notes for the metrics that a shard is down from now on.
local function measure_opened(dict, at_us)
  dict:incr(OPEN_COUNT, 1)
  dict:incr(OPENED, 1)
  dict:incr(SINCE_MS, floor(at_us / 1000))
end

-- Notes for the metrics that a shard is back.
local function measure_closed(dict, down_since_us, at_us)
  dict:incr(OPEN_COUNT, -1)
  dict:incr(SINCE_MS, -floor(down_since_us / 1000))
  dict:incr(DOWN_MS, max(0, floor(at_us / 1000) - floor(down_since_us / 1000)))
end

-- Returns how many shards are down now, how often one went down, and for how long they were down in all.
function Breakers:outages()
  local dict = self.dict
  local open, ended_ms, since_ms = dict:get(OPEN_COUNT) or 0, dict:get(DOWN_MS) or 0, dict:get(SINCE_MS) or 0
  local current_ms = max(0, open * floor(now_us() / 1000) - since_ms)
  return { open = open, opened = dict:get(OPENED) or 0, seconds = (ended_ms + current_ms) / 1000 }
end

-- Stores the next state of a breaker, and logs that its shard is gone or back. The lock is held.
local function transition(self, name, before, after, down_since_us, degraded_before, at_us, failure)
  if before.failures == 0 and after.failures > 0 then degraded_before = self:degraded_count() end
  if after.phase == OPEN and down_since_us == 0 then
    down_since_us = at_us
    measure_opened(self.dict, at_us)
    ngx.log(ngx.ERR, "headgate: each rule does what its fallback says until Redis answers again. ",
      failure and failure.text or "")
  elseif after.phase == CLOSED and down_since_us > 0 then
    log_back(self, name, down_since_us, degraded_before, at_us)
    measure_closed(self.dict, down_since_us, at_us)
    down_since_us = 0
  end
  save(self, name, after, down_since_us, degraded_before)
  if is_healthy(before) ~= is_healthy(after) then self.dict:incr(TROUBLED, is_healthy(after) and -1 or 1) end
  self.checked_at = -1
end

-- Applies a step to the breaker of a shard. Returns the other results of the step. The lock is taken only
-- if the step changes something; where it cannot be had, the breaker stays as it is.
local function change(self, name, failure, step)
  local at_us = now_us()
  local before = load(self, name)
  local after, result = step(before, at_us)
  if after == before then return result end
  local lock_name = lock.of(PREFIX .. name)
  local ticket = lock.take(self.dict, lock_name, LOCK_TIMEOUT_S)
  if not ticket then return nil end
  local down_since_us, degraded_before
  before, down_since_us, degraded_before = load(self, name)
  after, result = step(before, at_us)
  if after ~= before then transition(self, name, before, after, down_since_us, degraded_before, at_us, failure) end
  lock.free(self.dict, lock_name, ticket)
  return result
end

-- Returns the shard that decides for a key.
function Breakers:shard_of(key) return self.server:shard(key) end

-- Returns what a call that comes now should do.
function Breakers:choose_route(name)
  return change(self, name, nil, function(state, at_us)
    local route, after = breaker.choose_route(state, at_us)
    return after, route
  end) or breaker.FALL_BACK
end

function Breakers:on_success(name, route)
  change(self, name, nil, function(state, at_us) return breaker.on_success(state, route, at_us, SETTLE_US) end)
end

function Breakers:on_failure(name, route, failure)
  change(self, name, failure, function(state, at_us) return breaker.on_failure(state, route, at_us) end)
end

function Breakers:on_withdrawal(name, route)
  change(self, name, nil, function(state, at_us) return breaker.on_withdrawal(state, route, at_us) end)
end

-- Returns whether calls go to the shard.
function Breakers:must_call(name)
  local phase = load(self, name).phase
  return phase ~= OPEN and phase ~= PROBING
end

-- Returns whether a call on this route must pass its share too: other workers and members may not have noticed yet.
function Breakers:must_pass_both(name, route)
  return route == breaker.PROBE or load(self, name).phase == SETTLING
end

-- Returns the microseconds until a call may reach the shard of this key again.
function Breakers:next_probe_us(key) return breaker.next_probe_us(load(self, self:shard_of(key)), now_us()) end

-- Logs a message at most once a minute.
function Breakers:log_rarely(message)
  local at = now()
  if at >= self.logged_at and at - self.logged_at < LOG_INTERVAL_S then return end
  self.logged_at = at
  ngx.log(ngx.ERR, "headgate: ", message)
end

return M
