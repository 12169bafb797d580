-- What can go wrong between here and the server, as sentences to whoever can fix it. The twin of
-- engines/redis/errors.py.
--
--   kind         again       what happened
--   timeout      nil         no reply in time: it may have been charged
--   unreachable  nil         the connection failed after the question was sent: it may have been charged
--   either       unreached   ... before a whole question was sent: it was not
--   refused      nil         the server answered with an error, and has done nothing
--   refused      forgot      ... because it does not know the script any more
--   refused      elsewhere   ... because another node of the cluster answers for the key: MOVED, ASK
--   refused      not_now     ... because it is busy with itself: TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN
--   refused      replica     ... because it is a replica, and takes no writes
--   corrupt      nil         ... because a key holds a value that headgate did not write: no outage, and it stays so
--   wrong        nil         what came is not what was asked for
--
-- Law: a question may be asked again only where `again` says why it surely was not charged.

local naming = require "resty.headgate.engines.redis.keys"

local find, lower, match = string.find, string.lower, string.match

local M = {}

local AGAIN = {
  NOSCRIPT = "forgot", MOVED = "elsewhere", ASK = "elsewhere", READONLY = "replica",
  TRYAGAIN = "not_now", CLUSTERDOWN = "not_now", LOADING = "not_now", MASTERDOWN = "not_now",
}

function M.late(text) return { kind = "timeout", text = text } end

function M.lost(text) return { kind = "unreachable", text = text } end

function M.wrong(text) return { kind = "wrong", text = text } end

function M.not_now(text) return { kind = "refused", again = "not_now", text = text } end

-- Before a whole question was sent; `why` is the socket's word.
function M.unreached(text, why)
  return { kind = why == "timeout" and "timeout" or "unreachable", again = "unreached", text = text }
end

-- An error reply.
function M.said(text)
  local code = match(text, "^%S*")
  local found = { kind = code == "WRONGTYPE" and "corrupt" or "refused", text = text, again = AGAIN[code] }
  -- Inside a script the word comes later: Redis 7 says "READONLY ...", Redis 6 "ERR ... -READONLY ...".
  if not found.again and find(text, "-READONLY", 1, true) then found.again = "replica" end
  if found.again == "elsewhere" then
    local word, slot, host, port = match(text, "^(%u+) (%d+) (%S*):(%d+)")
    if not word then
      found.again = nil
      return found
    end
    found.for_now, found.slot, found.port = word == "ASK", tonumber(slot), tonumber(port)
    found.host = host ~= "?" and host or "" -- empty: the node that said so
  end
  return found
end

local function any(text, words)
  for _, word in ipairs(words) do
    if find(text, word) then return true end
  end
  return false
end

local LOGIN = { "wrongpass", "noauth", "invalid username%-password", "authentication" }
local RIGHTS = { "noperm", "acl failure", "no permission", "can't run", "can't access" }
local KEYS = { "access at least one of the keys", "access one of the keys", "access the key", "access a key",
  "keys? .*mentioned" }
local IN_SCRIPTS = "+time +get +mget +set +del +getrange +setrange +pexpire +pexpireat"
  .. " +zadd +zrem +zscore +zcount +zrangebyscore +zrevrange +zincrby"

local function right(prefix, text, folded)
  if any(folded, KEYS) then
    local pattern = naming.pattern(prefix)
    return "its user may not touch our keys (" .. text .. "). Grant them: ACL SETUSER <user> ~" .. pattern
  end
  local missing = match(folded, "to run the '([^']+)'") or match(folded, "run the '?([%w_|]+)'? command")
  return "its user lacks the right to run " .. (missing or "a command of our scripts") .. " (" .. text
    .. "). Grant it: ACL SETUSER <user> " .. (missing and "+" .. missing or IN_SCRIPTS)
end

local MANY = { MOVED = true, ASK = true, CROSSSLOT = true, CLUSTERDOWN = true }

-- Names the kind of server that answered, if the URL names another kind; else nil.
local function mistaken(text, instead)
  if not instead then return nil end
  if find(instead, "+cluster:", 1, true) then return MANY[match(text, "^(%u+) ")] and "a node of a cluster" end
  return find(text, "cluster support disabled", 1, true) and "no cluster"
end

local function why(prefix, trouble, instead)
  local text = trouble.text
  local folded = lower(text)
  if trouble.kind == "timeout" then return "no answer within the deadline (" .. text .. ")." end
  if any(folded, LOGIN) then
    return "it refused the user or the password (" .. text .. "). Correct them in the engine's URL."
  end
  if any(folded, RIGHTS) then return right(prefix, text, folded) end
  if find(folded, "no resolver defined", 1, true) then
    return "nginx cannot look up its name (" .. text .. "). Write a resolver into the http block, or an address into"
      .. " the engine's URL."
  end
  if find(folded, "certificate", 1, true) then
    return "its certificate was not trusted (" .. text .. "). Name its authority by lua_ssl_trusted_certificate; nginx"
      .. " compares names, not addresses, unless the engine's URL says ssl_check_hostname=false."
  end
  local kind = mistaken(text, instead)
  if kind then return "it is " .. kind .. " (" .. text .. "). Write " .. instead .. " as the engine's URL." end
  if trouble.kind == "unreachable" then return "the connection failed (" .. text .. ")." end
  if trouble.again == "replica" then
    return "it is a replica and takes no writes. Name the master in the engine's URL."
  end
  local told = match(text, "^WRONGTYPE headgate: (.*)")
  if told then return told end
  if trouble.kind == "corrupt" then
    return "a key under our prefix holds a value that headgate did not write (" .. text .. "). Choose another prefix."
  end
  return "it answered with an error (" .. text .. ")."
end

-- The engine's failure, told to people. `instead` is the URL to write if the server says that it is a node of a
-- cluster, or is none.
function M.told(where, prefix, trouble, instead)
  return {
    kind = trouble.kind, again = trouble.again, key = trouble.key,
    text = "Redis at " .. where .. " gave no decision: " .. why(prefix, trouble, instead),
  }
end

return M
