-- Handles requests off the fast path: a script to be loaded, redirects, failover. The twin of the flows in
-- engines/redis.
--
-- The fast path was tried first, or no server was known. From there the request follows every redirect, but not long
-- after its deadline.
--
-- Laws (tests/nginx/engines/redis/test_engine.py, test_cluster.py, test_sentinel.py): a request is repeated only where
-- it certainly has not been charged: the server said so, or never received it. A script that a server does not know is
-- sent to it once, as text. One call discovers the servers, the others wait for its result; and if that one is aborted,
-- another one discovers them.

local connection = require "resty.headgate.engines.redis.connection"
local errors = require "resty.headgate.engines.redis.errors"
local resp = require "resty.headgate.engines.redis.resp"

local now = require("resty.headgate.clock").now

local RETRY_PAUSE_S = 0.02 -- before a busy server is asked again
local POLL_PAUSE_S = 0.005 -- between two looks for another call's discovery
local MAX_DISCOVERY_S = 1 -- that others wait for a discovery
local MAX_REDIRECTS = 4 -- without a pause
local ASKING = resp.command { "ASKING" }

local M = {}

-- Returns the server that owns the tag now; else nil and a failure.
local function discover_node(topology, tag, deadline_at)
  while topology.discovering_until and topology.discovering_until > now() do
    ngx.sleep(POLL_PAUSE_S)
    local address = topology:node(tag)
    if address then return address end
    if now() >= deadline_at then
      return nil, errors.connect_failed(topology.text .. " was not found in time", "timeout")
    end
  end
  topology.discovering_until = math.min(deadline_at, now() + MAX_DISCOVERY_S)
  local failure = topology:discover(deadline_at)
  topology.discovering_until = nil
  if failure then return nil, failure end
  local address = topology:node(tag)
  if address then return address end
  return nil, errors.busy("no node answers for the slot of the key")
end

-- Returns whether a retry may help, and nothing can be charged twice.
local function may_retry(topology, failure)
  local retry = failure.retry
  return retry == "busy" or (topology.fails_over and (retry == "read_only_replica" or retry == "connect_failed"))
end

-- Returns the failure to report: of a last try that only had no time left, the one before it.
local function best_failure(failure, previous_failure, deadline_at)
  if previous_failure and failure.retry == "connect_failed" and now() + RETRY_PAUSE_S > deadline_at then
    return previous_failure
  end
  return failure
end

local function send(address, packed, deadline_at, is_temporary)
  if is_temporary then return connection.request(address, ASKING .. packed, deadline_at, 2) end
  return connection.request(address, packed, deadline_at)
end

-- Returns the reply to a packed request, or nil and a failure. `failure` is what happened at `address`, if it was asked
-- there. `script` is the script's text, in case that a server does not know it.
function M.request(topology, address, failure, packed, script, tag, deadline_at)
  local target, is_temporary, redirect_count, previous_failure = nil, false, 0, nil
  while true do
    if failure then
      local retry = failure.retry
      if retry == "no_script" then
        if not script or now() > deadline_at then return nil, failure end
        packed, script, target = resp.with_text(packed, script), nil, address
      elseif retry == "redirected" then
        target = now() <= deadline_at and topology:follow_redirect(failure, address)
        if not target then return nil, failure end
        is_temporary, redirect_count = failure.is_temporary, redirect_count + 1
        if redirect_count > MAX_REDIRECTS then ngx.sleep(RETRY_PAUSE_S) end -- the nodes do not agree yet
      else
        if address then topology:suspect(address) end
        if not may_retry(topology, failure) or now() + RETRY_PAUSE_S > deadline_at then
          return nil, best_failure(failure, previous_failure, deadline_at)
        end
        ngx.sleep(RETRY_PAUSE_S)
        if now() >= deadline_at then return nil, best_failure(failure, previous_failure, deadline_at) end
        target, is_temporary, previous_failure = nil, false, failure
      end
    end
    address, failure = target or topology:node(tag), nil
    if not address then address, failure = discover_node(topology, tag, deadline_at) end
    if address then
      local reply
      reply, failure = send(address, packed, deadline_at, is_temporary)
      if reply ~= nil then return reply end
    elseif failure.retry ~= "busy" then
      return nil, best_failure(failure, previous_failure, deadline_at)
    end
  end
end

return M
