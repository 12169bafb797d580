-- Failures between this nginx and the server, and sentences for people who can fix them. The twin of
-- engines/redis/errors.py.
--
--   kind         retry               what happened
--   timeout      nil                 no reply in time: it may have been charged
--   unreachable  nil                 the connection failed after the request was sent: it may have been charged
--   either       connect_failed      ... before a whole request was sent: it was not charged
--   refused      nil                 the server replied with an error, and has done nothing
--   refused      no_script           ... because it does not know the script any more
--   refused      redirected          ... because another node of the cluster owns the key: MOVED, ASK
--   refused      busy                ... because it is not ready: TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN
--   refused      read_only_replica   ... because it is a replica, and takes no writes
--   corrupt      nil                 ... because a key holds a value that headgate did not write: no outage
--   wrong        nil                 the reply is not what was requested
--
-- Law: a request may be repeated only where `retry` says why it certainly was not charged.

local keys = require "resty.headgate.engines.redis.keys"

local find, lower, match = string.find, string.lower, string.match

local M = {}

local RETRY_BY_CODE = {
  NOSCRIPT = "no_script", MOVED = "redirected", ASK = "redirected", READONLY = "read_only_replica",
  TRYAGAIN = "busy", CLUSTERDOWN = "busy", LOADING = "busy", MASTERDOWN = "busy",
}

function M.timed_out(text) return { kind = "timeout", text = text } end

function M.connection_lost(text) return { kind = "unreachable", text = text } end

function M.unusable(text) return { kind = "wrong", text = text } end

function M.busy(text) return { kind = "refused", retry = "busy", text = text } end

-- A failure before a whole request was sent; `why` is the socket's error.
function M.connect_failed(text, explanation)
  return { kind = explanation == "timeout" and "timeout" or "unreachable", retry = "connect_failed", text = text }
end

-- Returns the failure of an error reply.
function M.from_reply(text)
  local code = match(text, "^%S*")
  local failure = { kind = code == "WRONGTYPE" and "corrupt" or "refused", text = text, retry = RETRY_BY_CODE[code] }
  -- Inside a script the code comes later: Redis 7 says "READONLY ...", Redis 6 "ERR ... -READONLY ...".
  if not failure.retry and find(text, "-READONLY", 1, true) then failure.retry = "read_only_replica" end
  if failure.retry == "redirected" then
    local redirect, slot, host, port = match(text, "^(%u+) (%d+) (%S*):(%d+)")
    if not redirect then
      failure.retry = nil
      return failure
    end
    failure.is_temporary, failure.slot, failure.port = redirect == "ASK", tonumber(slot), tonumber(port)
    failure.host = host ~= "?" and host or "" -- empty: the node that replied
  end
  return failure
end

local function matches_any(text, patterns)
  for _, code in ipairs(patterns) do
    if find(text, code) then return true end
  end
  return false
end

local LOGIN_PATTERNS = { "wrongpass", "noauth", "invalid username%-password", "authentication" }
local PERMISSION_PATTERNS = { "noperm", "acl failure", "no permission", "can't run", "can't access" }
local KEY_PATTERNS = { "access at least one of the keys", "access one of the keys", "access the key", "access a key",
  "keys? .*mentioned" }
local SCRIPT_PERMISSIONS = "+time +get +set +del +getrange +setrange +pexpire +pexpireat +pttl"
  .. " +zadd +zrem +zscore +zcount +zrangebyscore +zrevrange +zincrby"

local function permission_text(prefix, text, folded)
  if matches_any(folded, KEY_PATTERNS) then
    local pattern = keys.pattern(prefix)
    return "its user may not touch our keys (" .. text .. "). Grant them: ACL SETUSER <user> ~" .. pattern
  end
  local missing_command = match(folded, "to run the '([^']+)'") or match(folded, "run the '?([%w_|]+)'? command")
  return "its user lacks the right to run " .. (missing_command or "a command of our scripts") .. " (" .. text
    .. "). Grant it: ACL SETUSER <user> " .. (missing_command and "+" .. missing_command or SCRIPT_PERMISSIONS)
end

local CLUSTER_CODES = { MOVED = true, ASK = true, CROSSSLOT = true, CLUSTERDOWN = true }

-- Names the kind of server that replied, if the URL names another kind; else nil.
local function other_server_kind(text, suggested_url)
  if not suggested_url then return nil end
  if find(suggested_url, "+cluster:", 1, true) then
    return CLUSTER_CODES[match(text, "^(%u+) ")] and "a node of a cluster"
  end
  return find(text, "cluster support disabled", 1, true) and "no cluster"
end

local function explanation(prefix, failure, suggested_url)
  local text = failure.text
  local folded = lower(text)
  if failure.kind == "timeout" then return "no answer within the deadline (" .. text .. ")." end
  if matches_any(folded, LOGIN_PATTERNS) then
    return "it refused the user or the password (" .. text .. "). Correct them in the engine's URL."
  end
  if matches_any(folded, PERMISSION_PATTERNS) then return permission_text(prefix, text, folded) end
  if find(folded, "no resolver defined", 1, true) then
    return "nginx cannot look up its name (" .. text .. "). Write a resolver into the http block, or an address into"
      .. " the engine's URL."
  end
  if find(folded, "certificate", 1, true) then
    return "its certificate was not trusted (" .. text .. "). Name its authority by lua_ssl_trusted_certificate; nginx"
      .. " compares names, not addresses, unless the engine's URL says ssl_check_hostname=false."
  end
  local kind = other_server_kind(text, suggested_url)
  if kind then return "it is " .. kind .. " (" .. text .. "). Write " .. suggested_url .. " as the engine's URL." end
  if failure.kind == "unreachable" then return "the connection failed (" .. text .. ")." end
  if failure.retry == "read_only_replica" then
    return "it is a replica and takes no writes. Name the master in the engine's URL."
  end
  local message = match(text, "^WRONGTYPE headgate: (.*)")
  if message then return message end
  if failure.kind == "corrupt" then
    return "a key under our prefix holds a value that headgate did not write (" .. text .. "). Choose another prefix."
  end
  return "it answered with an error (" .. text .. ")."
end

-- Explains an engine's failure to people. `suggested_url` is the URL to write if the server turns out to be a node of a
-- cluster, or to be none.
function M.explain(server_text, prefix, failure, suggested_url)
  return {
    kind = failure.kind, retry = failure.retry, key = failure.key,
    text = "Redis at " .. server_text .. " gave no decision: " .. explanation(prefix, failure, suggested_url),
  }
end

return M
