-- The long way of a question: a script to be loaded, servers that have changed places. The twin of flows.answered.
--
-- The short way was tried first, or nobody was known to ask. From there the question goes wherever it is sent on to,
-- but not long after its time.
--
-- Laws (tests/nginx/engines/redis/test_engine.py, test_cluster.py, test_sentinel.py): it is asked again only where it
-- surely has not been charged: the server said so, or never had it. A script that a server forgot goes to it once, as
-- text. One looks for the servers, the others wait for what is found; and if the one was broken off, another one looks.

local line = require "resty.headgate.engines.redis.connection"
local resp = require "resty.headgate.engines.redis.resp"
local trouble = require "resty.headgate.engines.redis.errors"

local now = require("resty.headgate.clock").now

local PAUSE = 0.02 -- seconds before a server that is busy with itself is asked again
local GLANCE = 0.005 -- ... before one looks whether another has found them
local LONGEST = 1 -- ... that one who looks is waited for
local DETOURS = 4 -- times that a question is sent on at once
local ASKING = resp.command { "ASKING" }

local M = {}

-- Who answers for the tag now; else nil and trouble.
local function found(topology, tag, by)
  while topology.looking and topology.looking > now() do
    ngx.sleep(GLANCE)
    local address = topology:node(tag)
    if address then return address end
    if now() >= by then return nil, trouble.unreached(topology.text .. " was not found in time", "timeout") end
  end
  topology.looking = math.min(by, now() + LONGEST)
  local failure = topology:discover(by)
  topology.looking = nil
  if failure then return nil, failure end
  local address = topology:node(tag)
  if address then return address end
  return nil, trouble.not_now("no node answers for the slot of the key")
end

-- Whether time may help, and nothing can be charged twice.
local function passes(topology, failure)
  local again = failure.again
  return again == "not_now" or (topology.moves and (again == "replica" or again == "unreached"))
end

-- Which trouble to tell: of a last try that only had no time left, the one before it.
local function best(failure, former, by)
  if former and failure.again == "unreached" and now() + PAUSE > by then return former end
  return failure
end

local function send(address, packed, by, for_now)
  if for_now then return line.ask(address, ASKING .. packed, by, 2) end
  return line.ask(address, packed, by)
end

-- The reply to what is packed, or nil and trouble. `failure` is what became of it at `address`, if it was asked there.
-- `text` is the script's, in case that a server does not know it.
function M.answered(topology, address, failure, packed, text, tag, by)
  local to, for_now, detours, former = nil, false, 0, nil
  while true do
    if failure then
      local again = failure.again
      if again == "forgot" then
        if not text or now() > by then return nil, failure end
        packed, text, to = resp.with_text(packed, text), nil, address
      elseif again == "elsewhere" then
        to = now() <= by and topology:sent_on(failure, address)
        if not to then return nil, failure end
        for_now, detours = failure.for_now, detours + 1
        if detours > DETOURS then ngx.sleep(PAUSE) end -- the nodes do not agree yet, and send us in circles
      else
        if address then topology:suspect(address) end
        if not passes(topology, failure) or now() + PAUSE > by then return nil, best(failure, former, by) end
        ngx.sleep(PAUSE)
        if now() >= by then return nil, best(failure, former, by) end
        to, for_now, former = nil, false, failure
      end
    end
    address, failure = to or topology:node(tag), nil
    if not address then address, failure = found(topology, tag, by) end
    if address then
      local reply
      reply, failure = send(address, packed, by, for_now)
      if reply ~= nil then return reply end
    elseif failure.again ~= "not_now" then
      return nil, best(failure, former, by)
    end
  end
end

return M
