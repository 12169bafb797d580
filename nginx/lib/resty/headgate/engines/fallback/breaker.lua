-- When to stop asking Redis, and when to ask it again: so that an outage is waited for once, and not by each request.
--
-- One failed question opens a breaker; while it is open no request asks. A timer does, in the background, after 100 ms,
-- then after twice that, up to a second: it writes a key that lives for a second, for a server that reads but takes no
-- writes decides nothing. When that is answered, requests try again. The first of them that is answered closes the
-- breaker; one that is not opens it again, for longer. Soon after it closed, it opens for longer, too.
--
--        one question failed            the probe was answered
--   CLOSED ---------------------> OPEN --------------------------> TRYING
--     ^                            ^      a question failed          |
--     |                            +---------------------------------+
--     +--------------------------------------------------------------+ a question was answered
--
-- There is one for each part of the server (a cluster's node), in each worker. "Too late" says something only to those
-- who have no more time than the one who waited: a rule with a longer deadline still asks, once. What is wrong with one
-- key, or with what was asked, opens nothing: it costs no time.
--
-- Laws (tests/nginx/test_fallback*.py):
--   - in each worker and for each length of deadline, only those wait in an outage who had asked before the first of
--     them failed;
--   - the log has one line when a breaker leaves CLOSED and one when it is back, whatever happens in between;
--   - an answer or a failure of a question that was asked before the breaker last changed changes nothing.

local naming = require "resty.headgate.engines.redis.keys"
local questions = require "resty.headgate.engines.redis.commands"

local M = {}

local CLOSED, OPEN, TRYING = "closed", "open", "trying"
local FIRST, LONGEST = 0.1, 1.0 -- seconds between two probes
local CALM = 10 -- seconds after which an outage is a new one
local TELL_EVERY = 60 -- seconds between two lines about what opens nothing

local huge, max, min = math.huge, math.max, math.min
local now, timer_at = require("resty.headgate.clock").now, ngx.timer.at

local Breakers, Breaker = {}, {}
Breakers.__index, Breaker.__index = Breakers, Breaker

local known = setmetatable({}, { __mode = "k" })

-- All breakers of a server: the same for all who ask it. `server` is a Redis engine.
function M.of(server)
  local found = known[server]
  if not found then
    found = { server = server, parts = {}, calm = true, turn = 0, unanswered = 0, told_at = -huge }
    setmetatable(found, Breakers)
    known[server] = found
  end
  return found
end

-- The breaker of the part that answers for a key.
function Breakers:at(key)
  local name = self.server:shard(key)
  local found = self.parts[name]
  if not found then
    found = { all = self, name = name, phase = CLOSED, turn = 0, pause = 0, back_at = -huge }
    setmetatable(found, Breaker)
    self.parts[name] = found
  end
  return found
end

-- Whether all are closed: nothing but asking is to be done.
local function look(self)
  self.calm = true
  for _, breaker in pairs(self.parts) do
    if breaker.phase ~= CLOSED then self.calm = false end
  end
end

-- At most once a minute.
function Breakers:tell(words)
  local at = now()
  if at >= self.told_at and at - self.told_at < TELL_EVERY then return end
  self.told_at = at
  ngx.log(ngx.ERR, "headgate: ", words)
end

local function opens_nothing(trouble)
  return trouble.kind == "wrong" or trouble.kind == "corrupt"
end

-- A question about these charges, asked at that turn, had no answer.
function Breakers:failed(charges, trouble, deadline, turn)
  if opens_nothing(trouble) then return self:tell(trouble.text) end
  if trouble.key then return self:at(trouble.key):failed(trouble.key, trouble, deadline, turn) end
  for _, charge in ipairs(charges) do self:at(charge.key):failed(charge.key, trouble, deadline, turn) end
end

function Breakers:answered(charges, answers, turn)
  for i, charge in ipairs(charges) do
    if not answers[i].degraded then self:at(charge.key):answered(turn) end
  end
end

-- Seconds that a question surely takes no longer than.
function Breakers:time_of(deadline) return min(deadline or huge, self.server.deadline) end

-- Whether somebody with so many seconds should ask.
function Breaker:passes(deadline)
  if self.phase ~= OPEN then return true end
  if not self.waiting then self:wait() end
  return self.all:time_of(deadline) > self.at_most
end

local function become(self, phase)
  local all = self.all
  all.turn = all.turn + 1
  self.phase, self.turn = phase, all.turn
  look(all)
end

function Breaker:failed(key, trouble, deadline, turn)
  if turn < self.turn then return end
  local time = self.all:time_of(deadline)
  local at_most = trouble.kind == "timeout" and time or huge
  self.trouble = trouble
  if self.phase == OPEN then
    self.at_most, self.time = max(self.at_most, at_most), min(self.time, time)
    return
  end
  local at = now()
  if self.phase == CLOSED then
    ngx.log(ngx.ERR, "headgate: each rule does what its fallback says until Redis answers again. ", trouble.text)
    self.gone_at, self.unanswered = at, self.all.unanswered
    if at < self.back_at or at - self.back_at > CALM then self.pause = 0 end
  end
  self.pause = self.pause == 0 and FIRST or min(2 * self.pause, LONGEST)
  self.at_most, self.time, self.key = at_most, time, key
  become(self, OPEN)
  self:wait()
end

local function close(self)
  self.back_at = now()
  become(self, CLOSED)
  local text = "headgate: Redis at %s is back, after %.1f s and %d decisions without it."
  local where = self.name ~= "" and self.name or self.all.server.text
  ngx.log(ngx.WARN, string.format(text, where, self.back_at - self.gone_at, self.all.unanswered - self.unanswered))
end

function Breaker:answered(turn)
  if self.phase == TRYING and turn >= self.turn then close(self) end
end

-- A probe: something is written where the failed question would have been, in no more time than that had.
local function probe(self)
  local server, tag = self.all.server, questions.escaped(self.key)
  return server:ask({ "SET", naming.probe(server.prefix, tag), "1", "PX", "1000" }, tag, self.time)
end

local function look_again(premature, self)
  if premature then return end
  local fine, reply, trouble = pcall(probe, self)
  if fine and reply ~= nil then
    self.waiting = false
    become(self, TRYING)
    -- Another node answers for the key by now, so nobody would try here.
    if self.all.server:shard(self.key) ~= self.name then close(self) end
    return
  end
  self.pause, self.trouble = min(2 * self.pause, LONGEST), fine and trouble or self.trouble
  self:wait()
  if not fine then ngx.log(ngx.ERR, "headgate: ", reply) end
end

-- The next probe. If there can be no timer now, whoever asks next brings it on.
function Breaker:wait() self.waiting = timer_at(self.pause, look_again, self) and true or false end

return M
