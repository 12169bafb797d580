-- Which server answers for a key: the only one, or the master that sentinels name. (A cluster: cluster.lua.) The twin
-- of engines/redis/topology.py.
--
-- All three have the same verbs. `node` only remembers, and `discover` asks. What was learnt may be old: a question
-- that turns out to be at the wrong door is sent on, because a server that says so has done nothing. So nothing needs
-- a lock, and each worker learns by itself.
--
--   node(tag)            who answers for the key with this hash tag; nil: `discover` first
--   owner(tag)           who did when that was last heard, in doubt or not
--   discover(by)         nil, or the trouble why nobody could tell
--   sent_on(told, from)  who answers instead, as MOVED and ASK say
--   suspect(address)     it did not answer, or says that it is not the one
--   instead              the URL to write if it turns out to be a node of a cluster, or to be none; or nil
--
-- A master is taken for one only if it says so itself (ROLE): for a moment after a failover, sentinels name one that is
-- a replica by now, and a replica would tell a denial from an old count. Where ROLE is not answered, the
-- question itself will tell.

local addresses = require "resty.headgate.engines.redis.server_address"
local cluster = require "resty.headgate.engines.redis.cluster"
local first_answer = require "resty.headgate.engines.redis.first_reply"
local line = require "resty.headgate.engines.redis.connection"
local resp = require "resty.headgate.engines.redis.resp"
local trouble = require "resty.headgate.engines.redis.errors"

local M = {}

local ROLE = resp.command { "ROLE" }

local One = {}
One.__index = One

local function one(address)
  return setmetatable({
    joins = true, moves = false, only = address, text = address.text, instead = addresses.url(address, "+cluster"),
  }, One)
end

function One:node() return self.only end

One.owner = One.node

function One:discover() return nil end -- luacheck: ignore self

function One:sent_on() return nil end -- luacheck: ignore self

function One:suspect() end -- luacheck: ignore self

local Sentinels = {}
Sentinels.__index = Sentinels

local function sentinels(watchers, name, template)
  local names = {}
  for i, watcher in ipairs(watchers) do names[i] = watcher.text end
  return setmetatable({
    joins = true, moves = true, text = name .. " of " .. table.concat(names, ", "),
    _watchers = watchers, _template = template, _known = {},
    _question = resp.command { "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name },
    _lacking = 'it knows no master called "' .. name .. '"',
  }, Sentinels)
end

function Sentinels:node() return self._master end

Sentinels.owner = Sentinels.node

-- One address for each place, so that its connections are known again.
function Sentinels:_at(host, port)
  local place = host .. ":" .. port
  local known = self._known[place]
  if not known then
    known = addresses.at(self._template, host, tonumber(port))
    self._known[place] = known
  end
  return known
end

function Sentinels:discover(by)
  local reply, at, failures = first_answer(self._watchers, self._question, by, "sentinel", self._lacking)
  if not reply then return failures end
  table.insert(self._watchers, 1, table.remove(self._watchers, at))
  local master = self:_at(reply[1], reply[2])
  local role = line.ask(master, ROLE, (ngx.now() + by) / 2)
  if role and role[1] ~= "master" then
    return trouble.not_now(master.text .. " is named as the master, and says that it is a replica")
  end
  self._master = master
  return nil
end

function Sentinels:sent_on() return nil end -- luacheck: ignore self

function Sentinels:suspect(address)
  if self._master == address then self._master = nil end
end

-- What a URL that was read stands for.
function M.open(said)
  if said.kind == "one" then return one(said.address) end
  if said.kind == "cluster" then return cluster.new(said.seeds) end
  return sentinels(said.watchers, said.name, said.master)
end

return M
