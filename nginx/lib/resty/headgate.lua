-- headgate at the gate: nginx decides in its access phase, before any backend is touched.
--
--   init_by_lua_block        { require("resty.headgate").init { redis = "redis://127.0.0.1:6379/0" } }
--   init_worker_by_lua_block { require("resty.headgate").start() }
--   access_by_lua_block      { require("resty.headgate").access() }
--   log_by_lua_block         { require("resty.headgate").log() }       -- only where rules have slots
--
-- The rulebook is the one that was pushed to Redis, or a file that `headgate rules compile` wrote. Counts are those of
-- every other process that follows the same book: in Redis, by the same scripts under the same keys; or in a shared
-- dict of this nginx, by the same models, all workers together. `headgate nginx conf RULEBOOK` prints a configuration.
--
-- What init is told:
--
--   redis        where Redis is, as a URL; with it the engine is Redis
--   engine       "shared": this nginx counts by itself, and needs no Redis
--   rules        a compiled rulebook, in place of the one that was pushed
--   keep         where to keep the last good rulebook, for a start without Redis
--   dict         the shared dict ("headgate")
--   prefix       of keys in Redis ("hg")
--   attributes   which nginx variable is which attribute: { user = "$cookie_uid" }
--   denial_cache, shed   false turns off repeating refusals from memory, and shedding
--
-- Laws: a request is charged once, whatever internal redirects and sub-requests it makes; no trouble of ours is ever
-- an error page.

local answer = require "resty.headgate.respond"
local assembly = require "resty.headgate.gateway"
local call = require "resty.headgate.decide"
local current = require "resty.headgate.request.request_identity"
local seen = require "resty.headgate.request.request_attributes"

local M = {}

local pcall, exit, sleep = pcall, ngx.exit, ngx.sleep
local gate

-- LuaJIT cannot compile a return into pcall, and throws away whatever leads to one. At a call of this, which it does
-- not compile either and which does nothing, it stops in time.
local pause, NOTHING = unpack, {}

-- A request is one piece of machine code at best. LuaJIT gives a piece up that has more than 15 calls in last place, or
-- more than 500 constants; a request has a few more.
local PIECES = { "loopunroll=60", "maxirconst=4000" }

-- Lay out everything, in the master: a mistake in the options keeps nginx from starting.
function M.init(options)
  require("jit.opt").start(unpack(PIECES))
  gate = assembly.build(options or {})
end

-- A worker begins.
function M.start() gate:start() end

-- The status that the request ends with here, or the seconds that it waits, if any.
local function decided()
  if not current.is_new() then return nil, nil end
  gate.holding:arrived()
  local plate = gate.follower:current()
  if not plate then return nil, nil end
  local one, matches = plate.met(seen.request())
  if one then
    local facts = call.alone(plate, one, gate.engines)
    if facts then return answer.alone(plate, one, facts) end
    matches = { one }
  end
  if not matches[1] then return answer.passed(), nil end
  local allowed, charges, answers, denied, held = call.decide(plate, matches, gate.engines)
  if held then gate.holding:hold(held) end
  return answer.give(plate, allowed, charges, answers, denied)
end

-- Where nginx is told what to do, nothing is left of what was decided: so LuaJIT makes none of the tables that most
-- requests would need (chain.lua).
local function decide()
  local status, wait = decided()
  if status then exit(status) end
  if wait then sleep(wait) end
  pause(NOTHING)
end

-- Decide about this request: it goes on, waits, or ends here.
function M.access()
  local fine, why = pcall(decide)
  if not fine then ngx.log(ngx.ERR, "headgate: a request was let pass undecided: ", why) end
end

-- The request has ended, however it did: the slots that it held go back.
function M.log()
  gate.holding:ended()
  current.ended()
end

return M
