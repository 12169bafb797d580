-- Watches the source of the rulebook, and holds the current bundle. One for each worker.
--
-- Every worker polls two fields in Redis, or a file, more than twice a second; only a new version is read. A version
-- that cannot be followed is refused and logged once, and the current bundle stays. A source that is gone, or is
-- suddenly empty, changes nothing: limits do not end because their rulebook is unavailable.
--
-- The last good bundle is also saved in the shared dict, where new workers find it after a reload, and on disk if the
-- option `keep` is set, so that a restart without Redis follows the last known rulebook.
--
-- Laws (tests/nginx/rules/test_bundle_watcher.py): the current bundle is always the last good one; every worker follows
-- a change within a second; a broken one is logged once; that there is none, so nothing is limited, is logged once for
-- all workers, after a start and after a reload; so are the warnings of a rulebook. Rules that are split among the
-- members are compiled anew within a second of a change of their number (tests/nginx/engines/test_split_limits.py).

local bundle_json = require "resty.headgate.rules.bundle_json"
local bundles = require "resty.headgate.rules.bundle"
local keys = require "resty.headgate.engines.redis.keys"

local M = {}

local decode, encode = bundle_json.decode, bundle_json.encode

local POLL_INTERVAL_S = 0.4 -- between two polls
local TIMEOUT_S = 1.0 -- of one request to Redis
local REJECTED, REJECTED_COUNT = "p:rejected:", "p:rejections"
local REJECTED_TTL_S = 10 -- in which all workers have met the same change
local SAVED_BUNDLE, UNLIMITED_LOGGED, WARNINGS_LOGGED = "p:bundle", "p:unlimited", "p:warned:"

local BundleWatcher = {}
BundleWatcher.__index = BundleWatcher

-- `settings`: source ("redis" or "file"), path, keep, dict, prefix, engine (of Redis), compile_options (see
-- bundle.lua), on_bundle.
function M.new(settings)
  local self = setmetatable(settings, BundleWatcher)
  self.logged, self.stamp = {}, nil
  return self
end

-- Logs a message once, until it changes or the problem ends (nil).
function BundleWatcher:log_once(topic, message)
  if self.logged[topic] == message then return end
  self.logged[topic] = message
  if message then ngx.log(ngx.ERR, "headgate: ", message) end
end

-- Logs that nothing is limited, once for all workers.
function BundleWatcher:warn_unlimited(why)
  if self.unlimited_logged then return end
  self.unlimited_logged = true
  local _, problem = self.dict:safe_add(UNLIMITED_LOGGED, true)
  if problem == "exists" then return end
  ngx.log(ngx.WARN, "headgate: there is no rulebook, so nothing is limited: ", why)
end

-- Counts a change that was refused, once for all workers. `id` names the change; nil if the rulebook is good.
function BundleWatcher:note_rejected(id)
  if self.rejected_id == id then return end
  self.rejected_id = id
  if not id or not self.dict:safe_add(REJECTED .. id, 1, REJECTED_TTL_S) then return end
  self.dict:safe_add(REJECTED_COUNT, 0)
  self.dict:incr(REJECTED_COUNT, 1)
end

-- Returns how many changes were refused.
function BundleWatcher:rejected_count() return self.dict:get(REJECTED_COUNT) or 0 end

-- Returns the key under which the workers note that a bundle's warnings were logged; nil if it has none.
local function warnings_key(bundle)
  if not bundle or #bundle.warnings == 0 then return nil end
  return WARNINGS_LOGGED .. ngx.crc32_long(table.concat(bundle.warnings, "\n"))
end

-- Logs the warnings of a new bundle, once for all workers, and at a start or a reload in the master.
function BundleWatcher:log_warnings(previous, bundle)
  local old, name = warnings_key(previous), warnings_key(bundle)
  if old and old ~= name then self.dict:delete(old) end
  if not name then return end
  local _, problem = self.dict:safe_add(name, true)
  if problem == "exists" and ngx.get_phase() ~= "init" then return end
  for _, warning in ipairs(bundle.warnings) do ngx.log(ngx.WARN, "headgate: ", warning) end
end

-- Uses a new bundle; returns false and a sentence if it cannot be followed.
function BundleWatcher:use_text(text)
  local ok, bundle = pcall(bundles.compile, text, self.compile_options)
  if not ok then return false, bundle end
  local why
  ok, why = pcall(self.on_bundle, bundle)
  if not ok then
    if self.bundle then self.on_bundle(self.bundle) end
    return false, why
  end
  bundle.text = text
  local previous = self.bundle
  self.bundle = bundle
  self:log_once("note", bundle.note)
  if not (previous and previous.text == text) then self:log_warnings(previous, bundle) end
  return true
end

local function read(path)
  local file, why = io.open(path, "rb")
  if not file then return nil, why end
  local text = file:read("*a")
  file:close()
  return text
end

-- Writes a file atomically: to a temporary file, which is then renamed.
local function write(path, text)
  local temporary = path .. "." .. ngx.worker.pid()
  local file, why = io.open(temporary, "wb")
  if not file then return why end
  local done
  done, why = file:write(text)
  file:close()
  if done then done, why = os.rename(temporary, path) end
  if not done then os.remove(temporary) end
  return not done and why or nil
end

-- Saves a bundle for the next worker, and for the next start.
function BundleWatcher:save(text)
  if self.dict:get(SAVED_BUNDLE) == text then return end
  local ok, why = self.dict:safe_set(SAVED_BUNDLE, text)
  if not ok then
    self:log_once("dict", "the bundle was not saved in the shared dict: " .. why .. ". Give it more room.")
  end
  if self.keep then
    why = write(self.keep, text)
    self:log_once("keep", why and "the bundle was not saved: " .. why or nil)
  end
end

local function try_saved(self, text, topic)
  if not text then return false end
  local ok, why = self:use_text(text)
  if not ok then self:log_once(topic, topic .. " cannot be followed: " .. why) end
  return ok
end

-- Loads a first bundle, before Redis can be asked: the file that is watched, else the one saved in the dict or on disk.
-- An nginx that has to follow a file, and has no bundle at all, does not start.
function BundleWatcher:load_first()
  self.dict:delete(UNLIMITED_LOGGED)
  local reason
  if self.source == "file" then
    local text, why = read(self.path)
    local ok
    if text then ok, why = self:use_text(text) end
    if ok then return self:save(text) end
    reason = "the rulebook " .. self.path .. " cannot be followed: " .. tostring(why)
  end
  if try_saved(self, self.dict:get(SAVED_BUNDLE), "the bundle in the shared dict")
    or try_saved(self, self.keep and read(self.keep), "the saved bundle") then
    return reason and self:log_once("source", reason)
  end
  if reason then error("headgate: " .. reason, 0) end
end

local function fetch_scripts(self, bundle, cached)
  local missing, request = {}, { "HMGET", keys.scripts(self.prefix) }
  for _, sha in pairs(bundle.scripts) do
    if not cached[sha] then
      missing[#missing + 1] = sha
      request[#request + 1] = sha
    end
  end
  if #missing == 0 then return cached end
  local reply, failure = self.engine:command(request, nil, TIMEOUT_S)
  if not reply then return nil, failure.text, true end
  local texts = {}
  for i, sha in ipairs(missing) do
    if type(reply[i]) ~= "string" then
      return nil, "the script " .. sha .. " is not in " .. request[2] .. ": push the rulebook again."
    end
    texts[sha] = reply[i]
  end
  for sha, text in pairs(cached) do texts[sha] = text end
  return texts
end

-- Returns a bundle with its version, and the texts of its scripts, for a start without Redis.
local function with_scripts(document, version, texts)
  local entries = {}
  for sha, text in pairs(texts) do entries[#entries + 1] = '"' .. sha .. '":' .. encode(text) end
  return string.sub(document, 1, -2)
    .. ',"version":' .. tonumber(version) .. ',"texts":{' .. table.concat(entries, ",") .. "}}"
end

-- Fetches the bundle of a version; else nil, why not, and whether that is transient.
function BundleWatcher:fetch(version)
  local raw, failure = self.engine:command({ "HGET", keys.rules(self.prefix), version }, nil, TIMEOUT_S)
  if failure then return nil, failure.text, true end
  if type(raw) ~= "string" then return nil, "it is missing. Push it again." end
  local document = decode(raw).document
  local texts, why, is_transient = fetch_scripts(self, decode(document), self.bundle and self.bundle.texts or {})
  if not texts then return nil, why, is_transient end
  return with_scripts(document, version, texts)
end

-- Polls Redis. Returns why there is nothing to follow, if there is not.
function BundleWatcher:poll_redis()
  local reply, failure = self.engine:command({ "HMGET", keys.rules(self.prefix), "version", "at_us" }, nil, TIMEOUT_S)
  if not reply then
    self:log_once("source", "the rulebook cannot be read: " .. failure.text)
    return "it cannot be read: " .. failure.text
  end
  self:log_once("source", nil)
  local version, at_us = reply[1], reply[2]
  if type(version) ~= "string" then
    return 'none was pushed to Redis under the prefix "' .. self.prefix
      .. '". Push one: headgate rules push RULEBOOK --engine URL'
  end
  local stamp = version .. "@" .. tostring(at_us)
  if stamp == self.stamp then return nil end
  local ok, text, why, is_transient = pcall(self.fetch, self, version)
  if not ok then text, why = nil, text end
  if text and not (self.bundle and text == self.bundle.text) then
    ok, why = self:use_text(text)
    if ok then self:save(text) end
  end
  self:log_once("version", why and "version " .. version .. " of the rulebook cannot be followed: " .. why or nil)
  if not is_transient then
    self.stamp = stamp
    self:note_rejected(why and stamp or nil)
  end
  return why and "version " .. version .. " cannot be followed"
end

function BundleWatcher:poll_file()
  local text, why = read(self.path)
  if text and self.bundle and text == self.bundle.text then return self:log_once("source", nil) end
  local ok
  if text then
    ok, why = self:use_text(text)
    if ok then self:save(text) end
  end
  self:log_once("source", why and "the rulebook " .. self.path .. " cannot be followed: " .. why or nil)
  if text then self:note_rejected(why and ngx.crc32_long(text) or nil) end
end

function BundleWatcher:poll()
  local why
  if self.source == "redis" then why = self:poll_redis() else self:poll_file() end
  if why and not self.bundle then self:warn_unlimited(why) end
  self.polled = true
  if self.bundle and bundles.is_outdated(self.bundle, self.compile_options) then self:use_text(self.bundle.text) end
end

local function poll_forever(premature, self)
  if premature then return end
  local ok, why = pcall(self.poll, self)
  if not ok then self:log_once("poll", tostring(why)) end
  self.polled = true
  ngx.timer.at(POLL_INTERVAL_S, poll_forever, self)
end

-- Starts polling in a worker. A worker that replaces another finds the bundle of that one in the dict: the master
-- started before it was known.
function BundleWatcher:start()
  local text = self.dict:get(SAVED_BUNDLE)
  if text and not (self.bundle and self.bundle.text == text) then self:use_text(text) end
  ngx.timer.at(0, poll_forever, self)
end

-- Returns the current bundle. A worker that has just started, without a saved bundle, waits for its first poll.
function BundleWatcher:current()
  local bundle = self.bundle
  if bundle or self.polled then return bundle end
  for _ = 1, TIMEOUT_S * 500 do
    ngx.sleep(0.002)
    if self.bundle or self.polled then break end
  end
  return self.bundle
end

return M
