-- Assembles the gateway from the options of `init`. Nothing is decided here.
--
-- Engines are layered, always in this order: fallback( load shedding( denial cache( Redis ))), and for prefetched
-- limits fallback( load shedding( prefetch( denial cache( Redis )))): a flood is shed before units are fetched for it,
-- and a refusal by Redis does not concern units that were prefetched before. Limits of this nginx alone are decided on
-- the shared dict.
--
-- Law (tests/nginx/test_init_options.py): an invalid option keeps nginx from starting, with a sentence.

local adaptive_engine = require "resty.headgate.engines.adaptive.engine"
local bundle_watcher = require "resty.headgate.rules.bundle_watcher"
local calls_in_flight = require "resty.headgate.request.calls_in_flight"
local counts_writer = require "resty.headgate.telemetry.counts_writer"
local decision_record = require "resty.headgate.request.decision_record"
local denial_cache = require "resty.headgate.engines.denial_cache"
local fallback = require "resty.headgate.engines.fallback"
local key_queue = require "resty.headgate.telemetry.key_queue"
local limit_changes = require "resty.headgate.telemetry.limit_changes"
local load_shedding = require "resty.headgate.engines.load_shedding"
local membership = require "resty.headgate.engines.fallback.membership"
local nearest = require "resty.headgate.text.closest_spelling"
local override_info = require "resty.headgate.request.override_info"
local prefetch = require "resty.headgate.engines.prefetch"
local prometheus_text = require "resty.headgate.telemetry.prometheus_text"
local recent_records = require "resty.headgate.telemetry.recent_records"
local redis_engine = require "resty.headgate.engines.redis.engine"
local request_attributes = require "resty.headgate.request.request_attributes"
local shard_breakers = require "resty.headgate.engines.fallback.shard_breakers"
local shared_engine = require "resty.headgate.engines.shared.engine"
local shared_measurements = require "resty.headgate.telemetry.shared_measurements"
local shared_totals = require "resty.headgate.telemetry.shared_totals"
local slot_tracker = require "resty.headgate.request.slot_tracker"

local M = {}

local OPTION_TYPES = {
  redis = "string", engine = "string", rules = "string", keep = "string", dict = "string", prefix = "string",
  attributes = "table", denial_cache = "boolean", shed = "boolean", recent_records = "boolean",
  decision_log_sample = "number", decision_log_salt = "string",
}
local REPLACEMENTS = {
  memo = function(value) return "denial_cache = " .. tostring(value) end,
  lease = function() return "prefetch: 100ms into the rule" end,
}
local MAX_TIMEOUT_S = 60 -- upper bound of any wait
local MIN_SALT_BYTES = 8
local DEFAULT_DEADLINE_S = 0.05 -- where neither the URL nor the rule has one

local function fail(...) error("headgate: " .. table.concat { ... }, 0) end

local OPTION_NAMES = {}
for name in pairs(OPTION_TYPES) do OPTION_NAMES[#OPTION_NAMES + 1] = name end
table.sort(OPTION_NAMES)

-- Returns what to write in place of an unknown option.
local function hint_for(name, value)
  if REPLACEMENTS[name] then return "Write " .. REPLACEMENTS[name](value) .. "." end
  local suggestion = nearest.nearest(tostring(name), OPTION_NAMES)
  local valid_names = "It knows " .. table.concat(OPTION_NAMES, ", ") .. "."
  return (suggestion and "Did you mean " .. suggestion .. "? " or "") .. valid_names
end

-- Checks that the folder exists. Whether workers may write to it is unknown yet: the master runs as another user.
local function check_folder(path)
  local folder = path:match("^(.*/)[^/]+$") or (path:find("/", 1, true) and path or "./")
  local file, why = io.open(folder .. ".")
  if not file then
    fail('keep = "', path, '": the folder cannot be opened (', why, "). Make it, and let nginx's workers write to it.")
  end
  file:close()
  if path:sub(-1) == "/" then fail('keep is a file, not a folder: write keep = "', path, 'bundle.json".') end
end

local function check(options)
  for name, value in pairs(options) do
    local kind = OPTION_TYPES[name]
    if not kind then
      fail('init knows no option "', tostring(name), '". ', hint_for(name, value))
    end
    if type(value) ~= kind then fail(name, " is a ", kind, ", not ", tostring(value), ".") end
  end
  local engine = options.engine or (options.redis and "redis" or "shared")
  if engine ~= "redis" and engine ~= "shared" then fail('engine is "redis" or "shared", not "', engine, '".') end
  if engine == "redis" and not options.redis then
    fail('where is Redis? Write redis = "redis://127.0.0.1:6379/0".')
  end
  if not options.redis and not options.rules then
    fail("there is no rulebook: say where Redis is (redis), or which file was compiled (rules).")
  end
  if options.keep then check_folder(options.keep) end
  local sample, salt = options.decision_log_sample, options.decision_log_salt
  if sample and not (sample >= 0 and sample <= 1) then
    fail("decision_log_sample is the part of the requests in the log, from 0 to 1, not ", tostring(sample), ".")
  end
  if salt and #salt < MIN_SALT_BYTES then fail("decision_log_salt has at least ", MIN_SALT_BYTES, " characters.") end
  return engine
end

local function open_redis(url, prefix)
  local engine, why = redis_engine.open(url, { prefix = prefix })
  if not engine then fail(why) end
  engine.deadline = MAX_TIMEOUT_S -- each call has a deadline of its own
  return engine
end

local Gate = {}
Gate.__index = Gate

-- Builds everything that a worker needs, in the master.
function M.build(options)
  local shared_only = check(options) == "shared"
  local prefix = options.prefix or "hg"
  request_attributes.set_variables(options.attributes or {})
  decision_record.configure(options.decision_log_sample or 1, options.decision_log_salt)
  local shared = shared_engine.new { dict = options.dict, prefix = prefix }
  local dict = shared.dict
  local redis = options.redis and open_redis(options.redis, prefix)
  local url_options = redis and redis.parsed_url or {}
  local self = setmetatable({ shared_engine = shared, redis = redis }, Gate)
  if redis and not shared_only then self.membership = membership.new(redis, dict, prefix, url_options.nodes) end
  self.engines = self:build_engines(dict, shared_only, url_options, options)
  self.limit_changes = limit_changes.new(dict, redis ~= nil)
  self.adaptive = adaptive_engine.new(dict, prefix, function(...) self.limit_changes:add(...) end)
  self.calls_in_flight = calls_in_flight.new(self.adaptive, dict)
  self.engines.calls_in_flight = self.calls_in_flight
  self.slot_tracker = slot_tracker.new(self.engines)
  self.measurements = shared_measurements.new(dict)
  self.totals = shared_totals.new(dict, function(at_once) self:flush_others(at_once) end)
  if redis then
    self.key_queue = key_queue.new(dict)
    self.counts_writer = counts_writer.new(redis, dict, prefix, self.totals, self.key_queue, self.limit_changes)
    if options.recent_records ~= false then self.recent_records = recent_records.new(redis, dict, prefix) end
  end
  self.bundle_watcher = bundle_watcher.new {
    source = options.rules and "file" or "redis", path = options.rules, keep = options.keep, prefix = prefix,
    dict = dict, engine = redis, on_bundle = function(bundle) self:use(bundle) end,
    compile_options = {
      prefix = prefix, shared_only = shared_only, fallback = url_options.fallback or "local",
      deadline = url_options.deadline or DEFAULT_DEADLINE_S, crc32 = ngx.crc32_long,
      reason_unsupported = shared_engine.reason_unsupported,
      position = function(rule) return self:position(rule) end,
    },
  }
  self.bundle_watcher:load_first()
  return self
end

function Gate:build_engines(dict, shared_only, url_options, options)
  local engines = {
    shared = self.shared_engine, overrides = override_info.new(self.redis), unavailable = fallback.unavailable,
  }
  if shared_only then return engines end
  local innermost = self.redis
  local cache_denials = options.denial_cache
  if cache_denials == nil then cache_denials = url_options.denial_cache end
  if cache_denials ~= false then innermost = denial_cache.around(innermost, dict) end
  local function with_fallback(engine)
    if options.shed ~= false then engine = load_shedding.around(engine, dict, self.membership) end
    return fallback.around(engine, self.shared_engine, self.membership, url_options)
  end
  engines.redis, engines.prefetched = with_fallback(innermost), with_fallback(prefetch.around(innermost, dict))
  return engines
end

-- Returns among how many members a rule's limit is split, and the rank of this nginx if it is known.
function Gate:position(rule)
  if rule.nodes then return rule.nodes, nil end
  if self.membership then return self.membership:position() end
  return 1, 0
end

-- Makes the engines use a new bundle.
function Gate:use(bundle)
  self.shared_engine:use(bundle)
  self.adaptive:use(bundle)
  if self.redis then self.redis:use(bundle, bundle.texts) end
end

-- Moves keys and measurements of this worker to the shared dict.
function Gate:flush_others(at_once)
  self.measurements:flush(self.bundle_watcher.bundle)
  if self.key_queue then self.key_queue:flush(at_once) end
end

-- Starts the timers of a worker.
function Gate:start()
  math.randomseed(ngx.worker.pid() * 1000 + ngx.now() * 1000 % 1000)
  self.bundle_watcher:start()
  if self.membership then self.membership:start() end
  local writer = self.counts_writer
  if writer then writer:start() end
  if self.recent_records then self.recent_records:start() end
  self.totals:start(writer and function() writer:write_last() end)
end

-- Returns the limits of adaptive rules, and how often they changed.
function Gate:adaptive_metrics() return { limits = self.adaptive:rows(), changes = self.limit_changes:read() } end

-- Returns the metrics of this nginx: the counts of the other workers as of the last second.
function Gate:metrics_text()
  self.totals:flush()
  local outages = self.membership and shard_breakers.for_server(self.redis, self.shared_engine.dict):outages()
  local watcher = self.bundle_watcher
  local totals, rejected = self.totals:read(), watcher:rejected_count()
  return prometheus_text.render(totals, self.measurements, watcher.bundle, rejected, outages, self:adaptive_metrics())
end

return M
