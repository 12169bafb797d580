-- Tracks the calls that requests of this worker have in flight under adaptive rules, and tells how each ended.
--
-- A request is in flight from its decision to its log phase, which every request reaches, also if its client goes
-- away. Its calls are stored under its address in memory (redirected_request.lua), so an internal redirect begins none.
-- How it went is what the upstream's variables say:
--
--   502, 503, 504 of the upstream (the last one tried)     dropped; a timeout is a 504, a refused connection a 502
--   other errors from 500 on, 101, no whole response       ignored: they say nothing about the load
--   no upstream: a file, a cache, our refusal              ignored
--   every other status                                     a success
--
-- The response time is $upstream_response_time, of all tries together. It has whole milliseconds; the time between the
-- decision and the log phase is exact, but has the client's pace in it. So that one is taken, as far as it agrees with
-- the upstream's by a millisecond.
--
-- A rule of which only requests without upstream are known stands still, and the log says so once. So it does if
-- requests end without our log phase, which shows when another request has the same address: then the calls of the
-- first one end as ignored; and if this worker never had a log phase, nothing is limited.
--
-- Laws (tests/nginx/adaptive/test_adaptive_rules.py): a call ends once, however its request ends.

local clock = require "resty.headgate.clock"
local concurrency_gate = require "resty.headgate.adaptive.concurrency_gate"
local variables = require "resty.headgate.ffi.variables"

local M = {}

local SUCCESS, IGNORED, DROPPED = concurrency_gate.SUCCESS, concurrency_gate.IGNORED, concurrency_gate.DROPPED
local STANDSTILL_CALLS = 20
local STATUSES = { [101] = IGNORED, [502] = DROPPED, [503] = DROPPED, [504] = DROPPED }
local NS_PER_MS = 1e6
local MIN_RESPONSE_NS = 1000

local gmatch, max, min = string.gmatch, math.max, math.min
local ngx, read = ngx, variables.read
local address_of = require("resty.headgate.request.redirected_request").address
local UNLIMITED = { 1, 0, 0, 0, 0, 0, 0, current = 1, degraded = true }

local CallsInFlight = {}
CallsInFlight.__index = CallsInFlight

-- `engine`: of engines/adaptive/engine.lua.
function M.new(engine, dict)
  return setmetatable({
    engine = engine, dict = dict, held = {}, count = 0, has_log_phase = false, log_phase_missing = false,
    unreported = {}, reported = {},
  }, CallsInFlight)
end

-- Returns how a request went by its upstream, and the upstream's time in nanoseconds; nil without upstream.
function M.outcome(statuses, times, is_complete)
  if not statuses then return nil, nil end
  local status
  for text in gmatch(statuses, "%d%d%d") do status = tonumber(text) end
  local response_ms = 0
  for text in gmatch(times or "", "%d+%.%d+") do response_ms = response_ms + tonumber(text) * 1000 end
  if not is_complete or not status then return string.find(statuses, "[%d-]") and IGNORED or nil, 0 end
  return STATUSES[status] or (status >= 500 and IGNORED or SUCCESS), response_ms * NS_PER_MS
end

-- Returns the response time of a request.
local function response_time(started_ns, upstream_ns)
  local elapsed_ns = clock.monotonic_us() * 1000 - started_ns
  local bounded_ns = max(upstream_ns - NS_PER_MS, min(upstream_ns + NS_PER_MS, elapsed_ns))
  return max(MIN_RESPONSE_NS, bounded_ns)
end

-- Notes whether a rule learned anything from a call; says once that it stands still.
local function note_report(self, rule, has_upstream)
  if has_upstream or self.reported[rule] then
    self.reported[rule] = true
    return
  end
  self.unreported[rule] = (self.unreported[rule] or 0) + 1
  if self.unreported[rule] == STANDSTILL_CALLS and self.dict:safe_add("a:still:" .. rule, 1) then
    ngx.log(ngx.WARN, 'headgate: the rule "', rule, '" stands still: ', STANDSTILL_CALLS, " requests ended, and ",
      "none had an upstream (proxy_pass, fastcgi_pass, ...), whose response time an adaptive limit follows.")
  end
end

local function end_calls(self, address, outcome, upstream_ns)
  local calls = self.held[address]
  self.held[address], self.count = nil, self.count - 1
  for i = 1, #calls do
    local call = calls[i]
    note_report(self, call.binding.rule.name, outcome ~= nil)
    self.engine:finish(call, outcome or IGNORED, response_time(call.started_ns, upstream_ns or 0))
  end
end

local function report_missing_log_phase(self)
  if self.log_phase_missing then return end
  self.log_phase_missing = true
  ngx.log(ngx.ERR, "headgate: requests end without our log phase, so adaptive limits do not learn how they went. ",
    'Write log_by_lua_block { require("resty.headgate").log() } wherever the access phase is ours.')
end

-- Handles the arrival of a request. Calls that are still in flight under its address belong to one that ended without
-- our log phase.
function CallsInFlight:request_arrived()
  if self.count == 0 then return end
  local address = address_of()
  if not self.held[address] then return end
  end_calls(self, address, nil, nil)
  report_missing_log_phase(self)
end

-- Decides a call of the current request: its Outcome. A call that begins is in flight until the request has ended.
function CallsInFlight:enter(charge)
  if self.log_phase_missing and not self.has_log_phase then return UNLIMITED end
  local outcome = self.engine:enter(charge)
  local call = outcome.call
  if not call then return outcome end
  local address = address_of()
  local calls = self.held[address]
  if not calls then
    calls = {}
    self.held[address], self.count = calls, self.count + 1
  end
  calls[#calls + 1] = call
  return outcome
end

-- Takes back the calls of the current request: a rule refused it.
function CallsInFlight:cancel()
  if self.count == 0 then return end
  local address = address_of()
  local calls = self.held[address]
  if not calls then return end
  self.held[address], self.count = nil, self.count - 1
  for i = 1, #calls do self.engine:cancel(calls[i]) end
end

-- Ends the calls of the current request, which has ended.
function CallsInFlight:request_ended()
  if self.count == 0 then return end
  self.has_log_phase = true
  local address = address_of()
  if not self.held[address] then return end
  local is_complete = read "request_completion" == "OK"
  local outcome, upstream_ns = M.outcome(read "upstream_status", read "upstream_response_time", is_complete)
  end_calls(self, address, outcome, upstream_ns)
end

return M
