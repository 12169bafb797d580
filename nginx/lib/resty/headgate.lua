-- headgate for nginx: decides in the access phase, before any backend is touched.
--
--   init_by_lua_block        { require("resty.headgate").init { redis = "redis://127.0.0.1:6379/0" } }
--   init_worker_by_lua_block { require("resty.headgate").start() }
--   access_by_lua_block      { require("resty.headgate").access() }
--   log_by_lua_block         { require("resty.headgate").log() }       -- where rules have slots or are adaptive
--
-- Prometheus metrics:  location = /metrics { content_by_lua_block { require("resty.headgate").metrics() } }
--
-- The rulebook is the one that was pushed to Redis, or a file that `headgate rules compile` wrote. Counts are shared
-- with every other process that follows the same rulebook: in Redis, by the same scripts under the same keys; or in a
-- shared dict of this nginx, by the same models, for all its workers. `headgate nginx conf RULEBOOK` prints a
-- configuration.
--
-- Options of init:
--
--   redis        the URL of Redis; with it the engine is Redis
--   engine       "shared": this nginx counts by itself, and needs no Redis
--   rules        a compiled rulebook, in place of the one that was pushed
--   keep         the file in which the last good rulebook is saved, for a start without Redis
--   dict         the shared dict ("headgate")
--   prefix       of keys in Redis ("hg")
--   attributes   which nginx variable is which attribute: { user = "$cookie_uid" }
--   denial_cache, shed   false turns off repeating refusals from memory, and load shedding
--   recent_records       false: no sample of recent decisions goes to Redis
--   decision_log_sample  the part of the requests in the decision log, from 0 to 1; refusals are always in it
--   decision_log_salt    hashes the keys in the decision log, and in recent records, with this secret
--
-- Laws: a request is charged once, whatever internal redirects and sub-requests it makes; a failure of headgate is
-- never an error page.

local decide = require "resty.headgate.decide"
local decision_counts = require "resty.headgate.telemetry.decision_counts"
local decision_record = require "resty.headgate.request.decision_record"
local gateway = require "resty.headgate.gateway"
local measurements = require "resty.headgate.engines.measurements"
local prometheus_text = require "resty.headgate.telemetry.prometheus_text"
local recent_records = require "resty.headgate.telemetry.recent_records"
local request_attributes = require "resty.headgate.request.request_attributes"
local redirected_request = require "resty.headgate.request.redirected_request"
local respond = require "resty.headgate.respond"
local single_charge = require "resty.headgate.single_charge"

local M = {}

local pcall, exit, sleep = pcall, ngx.exit, ngx.sleep
local begin, observe_since = measurements.begin, measurements.observe_since
local wants_record = recent_records.wants
local gate

-- LuaJIT cannot compile a return into pcall, and discards the trace that leads to one. It ends the trace in time at a
-- call of unpack, which it does not compile either, and which does nothing here.
local stop_trace, EMPTY = unpack, {}

-- At best a request is one trace. LuaJIT gives up on a trace with more than 15 tail calls or more than 500 constants; a
-- request has a few more.
local JIT_OPTIONS = { "loopunroll=60", "maxirconst=4000" }

-- Builds the gateway in the master process: a mistake in the options keeps nginx from starting.
function M.init(options)
  require("jit.opt").start(unpack(JIT_OPTIONS))
  gate = gateway.build(options or {})
end

-- Starts the timers of a worker.
function M.start() gate:start() end

-- Returns the status that the request ends with here, or the seconds that it waits, if any.
local function run_decision()
  if not redirected_request.is_new() then return nil, nil end
  gate.slot_tracker:request_arrived()
  gate.calls_in_flight:request_arrived()
  local bundle = gate.bundle_watcher:current()
  if not bundle then return nil, nil end
  local timed_from_us = begin("decision_seconds")
  local values = request_attributes.request()
  local single, matches = bundle.match(values)
  local attributes, started_us = decision_record.begin(bundle, values)
  if single then
    local outcome = single_charge.decide(bundle, single, gate.engines)
    if outcome then
      if timed_from_us then observe_since("decision_seconds", timed_from_us) end
      decision_counts.count_single(single, outcome)
      if attributes ~= nil then decision_record.write_single(bundle, single, outcome, attributes, started_us) end
      if wants_record(outcome[1] ~= 1) then recent_records.add_single(bundle, single, outcome) end
      return single_charge.respond(bundle, single, outcome)
    end
    matches = { single }
  end
  if not matches[1] then
    decision_counts.count_pass()
    return respond.pass(bundle, attributes, started_us), nil
  end
  local allowed, charges, outcomes, denied, held = decide.decide(bundle, matches, gate.engines)
  if timed_from_us then observe_since("decision_seconds", timed_from_us) end
  if held then gate.slot_tracker:hold(held) end
  decision_counts.count_several(charges, outcomes, denied)
  return respond.several(bundle, allowed, charges, outcomes, denied, attributes, started_us)
end

-- Decides, then acts. At that point nothing of the decision is used any more, so LuaJIT creates none of the tables that
-- most requests would need (compose_functions.lua).
local function decide_and_act()
  local status, wait = run_decision()
  if status then exit(status) end
  if wait then
    measurements.observe("delay_seconds", wait)
    sleep(wait)
  end
  stop_trace(EMPTY)
end

-- Decides about this request: it goes on, waits, or ends here.
function M.access()
  local ok, why = pcall(decide_and_act)
  if not ok then
    decision_counts.count_error()
    ngx.log(ngx.ERR, "headgate: a request was let pass undecided: ", why)
  end
end

-- Ends the calls of a request that has ended, however it ended, and releases its slots.
function M.log()
  gate.calls_in_flight:request_ended()
  gate.slot_tracker:request_ended()
  redirected_request.request_ended()
end

-- Responds with the metrics of this nginx, all workers together, as Prometheus reads them.
function M.metrics()
  ngx.header["Content-Type"] = prometheus_text.CONTENT_TYPE
  ngx.print(gate:metrics_text())
end

return M
