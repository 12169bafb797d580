-- How the parts of the gateway are put together, from what `init` was told. Nothing is decided here.
--
-- Engines stack, always in this order: fallback( shed( denial cache( Redis ))), and what is prefetched asks
-- fallback( shed( prefetch( denial cache( Redis )))): a flood is shed before units are ordered for it, and what Redis
-- refused says nothing of the units that are here already. What counts on this nginx is asked of the shared dict.
--
-- Law (tests/nginx/test_init_options.py): an option that cannot be meant keeps nginx from starting, with a sentence.

local fallback = require "resty.headgate.engines.fallback"
local follow = require "resty.headgate.rules.bundle_watcher"
local holding = require "resty.headgate.request.slot_tracker"
local lease = require "resty.headgate.engines.prefetch"
local members = require "resty.headgate.engines.fallback.membership"
local memo = require "resty.headgate.engines.denial_cache"
local nearest = require "resty.headgate.text.nearest"
local own = require "resty.headgate.request.override_info"
local redis_engine = require "resty.headgate.engines.redis.engine"
local seen = require "resty.headgate.request.request_attributes"
local shared_engine = require "resty.headgate.engines.shared.engine"
local shed = require "resty.headgate.engines.load_shedding"

local M = {}

local KNOWN = {
  redis = "string", engine = "string", rules = "string", keep = "string", dict = "string", prefix = "string",
  attributes = "table", denial_cache = "boolean", shed = "boolean",
}
local INSTEAD = {
  memo = function(value) return "denial_cache = " .. tostring(value) end,
  lease = function() return "prefetch: 100ms into the rule" end,
}
local LONGEST = 60 -- seconds that anything is waited for
local PROMPT = 0.05 -- seconds that an answer is waited for, unless somebody says

local function fail(...) error("headgate: " .. table.concat { ... }, 0) end

local NAMES = {}
for name in pairs(KNOWN) do NAMES[#NAMES + 1] = name end
table.sort(NAMES)

-- What to write in place of an option that is not known.
local function hint_for(name, value)
  if INSTEAD[name] then return "Write " .. INSTEAD[name](value) .. "." end
  local near = nearest.nearest(tostring(name), NAMES)
  return (near and "Did you mean " .. near .. "? " or "") .. "It knows " .. table.concat(NAMES, ", ") .. "."
end

-- Whether workers may write there is not known yet: the master is somebody else.
local function check_folder(path)
  local folder = path:match("^(.*/)[^/]+$") or (path:find("/", 1, true) and path or "./")
  local file, why = io.open(folder .. ".")
  if not file then
    fail('keep = "', path, '": the folder cannot be opened (', why, "). Make it, and let nginx's workers write to it.")
  end
  file:close()
  if path:sub(-1) == "/" then fail('keep is a file, not a folder: write keep = "', path, 'plate.json".') end
end

local function check(options)
  for name, value in pairs(options) do
    local kind = KNOWN[name]
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
  return engine
end

local function opened(url, prefix)
  local engine, why = redis_engine.open(url, { prefix = prefix })
  if not engine then fail(why) end
  engine.deadline = LONGEST -- who asks says how long
  return engine
end

local Gate = {}
Gate.__index = Gate

-- Everything that a worker needs, made in the master.
function M.build(options)
  local only_here = check(options) == "shared"
  local prefix = options.prefix or "hg"
  seen.named(options.attributes or {})
  local here = shared_engine.new { dict = options.dict, prefix = prefix }
  local dict = here.dict
  local redis = options.redis and opened(options.redis, prefix)
  local chosen = redis and redis.said or {}
  local self = setmetatable({ here = here, redis = redis }, Gate)
  if redis and not only_here then self.members = members.new(redis, dict, prefix, chosen.nodes) end
  self.engines = self:stacked(dict, only_here, chosen, options)
  self.holding = holding.new(self.engines)
  self.follower = follow.new {
    source = options.rules and "file" or "redis", path = options.rules, keep = options.keep, prefix = prefix,
    dict = dict, engine = redis, on_plate = function(plate) self:use(plate) end,
    chosen = {
      prefix = prefix, only_here = only_here, fallback = chosen.fallback or "local",
      deadline = chosen.deadline or PROMPT, crc32 = ngx.crc32_long, refuses = shared_engine.refuses,
      place = function(rule) return self:place(rule) end,
    },
  }
  self.follower:begin()
  return self
end

function Gate:stacked(dict, only_here, chosen, options)
  local engines = { here = self.here, own = own.of(self.redis), without = fallback.without }
  if only_here then return engines end
  local asked = self.redis
  local remembers = options.denial_cache
  if remembers == nil then remembers = chosen.denial_cache end
  if remembers ~= false then asked = memo.around(asked, dict) end
  local function guarded(engine)
    if options.shed ~= false then engine = shed.around(engine, dict, self.members) end
    return fallback.around(engine, self.here, self.members, chosen)
  end
  engines.there, engines.prefetched = guarded(asked), guarded(lease.around(asked, dict))
  return engines
end

-- Among how many a rule's limit is split, and which of them this nginx is, if that is known.
function Gate:place(rule)
  if rule.nodes then return rule.nodes, nil end
  if self.members then return self.members:place() end
  return 1, 0
end

-- A plate comes in force.
function Gate:use(plate)
  self.here:use(plate)
  if self.redis then self.redis:use(plate, plate.texts) end
end

-- A worker begins.
function Gate:start()
  math.randomseed(ngx.worker.pid() * 1000 + ngx.now() * 1000 % 1000)
  self.follower:start()
  if self.members then self.members:start() end
end

return M
