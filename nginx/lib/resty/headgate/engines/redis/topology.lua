-- Finds the server that owns a key: a single server, or the master that sentinels name. (A cluster: cluster.lua.) The
-- twin of engines/redis/topology.py.
--
-- All three have the same methods. `node` only remembers, and `discover` asks. What was learnt may be old: a request to
-- the wrong server is redirected, because a server that redirects has done nothing. So nothing needs a lock, and each
-- worker learns by itself.
--
--   node(tag)                 the server that owns the key with this hash tag; nil: `discover` first
--   owner(tag)                the last known owner, even if it is in doubt
--   discover(deadline_at)     nil, or a failure if no server could tell
--   follow_redirect(failure, from)  the server that MOVED or ASK names
--   suspect(address)          it did not reply, or is not the owner
--   spans_keys                one server has all counts, so a script may use any keys
--   fails_over                another server may take over
--   suggested_url             the URL to write if it turns out to be a node of a cluster, or to be none; or nil
--
-- A master counts as one only if it says so itself (ROLE): for a moment after a failover, sentinels name one that is a
-- replica by now, and a replica would deny from an old count. Where ROLE is not answered, the request itself will show.

local cluster = require "resty.headgate.engines.redis.cluster"
local connection = require "resty.headgate.engines.redis.connection"
local errors = require "resty.headgate.engines.redis.errors"
local first_reply = require "resty.headgate.engines.redis.first_reply"
local resp = require "resty.headgate.engines.redis.resp"
local server_address = require "resty.headgate.engines.redis.server_address"

local M = {}

local ROLE = resp.command { "ROLE" }

local SingleServer = {}
SingleServer.__index = SingleServer

local function single_server(address)
  return setmetatable({
    spans_keys = true, fails_over = false, single_address = address, text = address.text,
    suggested_url = server_address.url(address, "+cluster"),
  }, SingleServer)
end

function SingleServer:node() return self.single_address end

SingleServer.owner = SingleServer.node

function SingleServer:discover() return nil end -- luacheck: ignore self

function SingleServer:follow_redirect() return nil end -- luacheck: ignore self

function SingleServer:suspect() end -- luacheck: ignore self

local SentinelGroup = {}
SentinelGroup.__index = SentinelGroup

local function sentinel_group(sentinels, name, template)
  local names = {}
  for i, sentinel in ipairs(sentinels) do names[i] = sentinel.text end
  return setmetatable({
    spans_keys = true, fails_over = true, text = name .. " of " .. table.concat(names, ", "),
    _sentinels = sentinels, _template = template, _addresses = {},
    _command = resp.command { "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name },
    _empty_text = 'it knows no master called "' .. name .. '"',
  }, SentinelGroup)
end

function SentinelGroup:node() return self._master end

SentinelGroup.owner = SentinelGroup.node

-- Returns one address for each host and port, so that its connections are reused.
function SentinelGroup:_at(host, port)
  local host_port = host .. ":" .. port
  local cached = self._addresses[host_port]
  if not cached then
    cached = server_address.at(self._template, host, tonumber(port))
    self._addresses[host_port] = cached
  end
  return cached
end

function SentinelGroup:discover(deadline_at)
  local reply, at, failures = first_reply(self._sentinels, self._command, deadline_at, "sentinel", self._empty_text)
  if not reply then return failures end
  table.insert(self._sentinels, 1, table.remove(self._sentinels, at))
  local master = self:_at(reply[1], reply[2])
  local role = connection.request(master, ROLE, (ngx.now() + deadline_at) / 2)
  if role and role[1] ~= "master" then
    return errors.busy(master.text .. " is named as the master, and says that it is a replica")
  end
  self._master = master
  return nil
end

function SentinelGroup:follow_redirect() return nil end -- luacheck: ignore self

function SentinelGroup:suspect(address)
  if self._master == address then self._master = nil end
end

-- Returns the topology of a parsed URL.
function M.open(parsed_url)
  if parsed_url.kind == "one" then return single_server(parsed_url.address) end
  if parsed_url.kind == "cluster" then return cluster.new(parsed_url.seeds) end
  return sentinel_group(parsed_url.sentinels, parsed_url.name, parsed_url.master)
end

return M
