-- Who else shares the limits: counted while Redis answers, remembered when it does not. The twin of
-- engines/layers/fallback/membership.py.
--
-- This nginx is one member, however many workers it has. It says so every second in the same sorted set as every Python
-- process (lua/commands/membership.lua), and is told how many are alive and how many of them come before it: its rank.
-- What was heard last is what stands when nobody answers any more. One worker at a time speaks: whoever finds that the
-- last one's turn is over. The others read what it wrote into the shared dict, where it also survives a reload:
--
--   m:id       the member's number        m:heard     the last five beats, count and rank of each, the latest first
--   m:turn     somebody has just beaten   m:missed    beats in a row that were not heard
--   m:workers  how many workers live
--
-- All of them are laid at the start and written in place ever after, so they need no room in a full dict.
--
-- A count that falls is believed after five beats only: a server that came back empty has to hear from everybody first,
-- and in the meantime nobody should think itself alone. The last worker that ends in good order (nginx -s quit) takes
-- the member out; otherwise it is taken for dead after five seconds.
--
-- Laws (tests/nginx/engines/test_membership.py):
--   - count and rank are those of the last beat, or of an earlier one that counted more, up to five beats back; (1, 0)
--     as long as none was heard; a number said beforehand and no rank, where one was said;
--   - nginx and Python processes with one prefix on one server count each other, and no two have the same rank;
--   - one member beats about once a second, whatever the number of workers, and stays the same one over a reload;
--   - a failed beat changes nothing, and is told once in the log when the others have forgotten us.

local naming = require "resty.headgate.engines.redis.keys"

local M = {}

local TICK, TURN = 0.5, 0.95 -- seconds between two looks of a worker, and between two beats
local CACHED = 0.5 -- seconds that a worker goes by what it last read
local PATIENCE = 1.0 -- seconds for one answer
local TTL_US, BELIEVED = "5000000", 5
local ID, HEARD, MISSED, TURN_OF, WORKERS = "m:id", "m:heard", "m:missed", "m:turn", "m:workers"

local now, timer_at = require("resty.headgate.clock").now, ngx.timer.at

local Members = {}
Members.__index = Members

-- `engine`: of Redis; `nodes`: how many there are, if that was said beforehand: then nobody is asked, and this nginx
-- knows no rank. It has an equal share (share.lua).
function M.new(engine, dict, prefix, nodes)
  return setmetatable({
    engine = engine, dict = dict, key = naming.members(prefix), count = nodes or 1, rank = nodes == nil and 0 or nil,
    fixed = nodes ~= nil, read_at = -math.huge,
  }, Members)
end

-- A number that no other member has: 48 bits by chance. Lua's own chance begins alike in every process.
local function drawn()
  local file, why = io.open("/dev/urandom", "rb")
  if not file then error("/dev/urandom cannot be read: " .. why, 0) end
  local number = 0
  for _, byte in ipairs { string.byte(file:read(6), 1, 6) } do number = number * 256 + byte end
  file:close()
  return string.format("%.0f", number + 1)
end

-- The same for all workers; each remembers it, should the dict forget.
function Members:id()
  local id = self.dict:get(ID)
  if not id then
    self.dict:safe_add(ID, self.known_id or drawn())
    id = self.dict:get(ID) or self.known_id or drawn()
  end
  self.known_id = id
  return id
end

local function written(count, rank) return string.format("%8d %8d,", count, rank) end

-- Of the beats that counted most, the latest; nil if none was heard.
local function believed(heard)
  local most, place = 0, nil
  for count, rank in string.gmatch(heard or "", "(%d+) +(%d+)") do
    if tonumber(count) > most then most, place = tonumber(count), tonumber(rank) end
  end
  return place and most, place
end

-- How many share the limits, and how many of them come before this nginx, if that is known.
function Members:place()
  local at = now()
  if self.fixed or (at >= self.read_at and at - self.read_at < CACHED) then return self.count, self.rank end
  self.read_at = at
  local count, rank = believed(self.dict:get(HEARD))
  if count then self.count, self.rank = count, rank end
  return self.count, self.rank
end

local NOTHING = string.rep(written(0, 0), BELIEVED)

local function note(dict, count, rank)
  local before = dict:get(HEARD) or NOTHING
  dict:safe_set(HEARD, string.sub(written(count, rank) .. before, 1, #NOTHING))
  dict:safe_set(MISSED, 0)
end

-- Others take us for dead after five.
local function miss(self, why)
  local missed = self.dict:incr(MISSED, 1)
  if missed ~= BELIEVED then return end
  local count, rank = self:place()
  ngx.log(ngx.WARN, "headgate: the others who share the limits have not heard of this nginx for ", BELIEVED,
    " s; it stays number ", rank + 1, " of ", count, ". ", why)
end

function Members:beat()
  local reply, trouble = self.engine:run("membership", self.key, { "beat", self:id(), TTL_US }, nil, PATIENCE)
  if reply and reply[2] then return note(self.dict, reply[1], reply[2]) end
  miss(self, trouble and trouble.text or "Redis answered what is no count of members.")
end

local function leave(self)
  local left = self.dict:incr(WORKERS, -1)
  if left ~= 0 or not believed(self.dict:get(HEARD)) then return end
  self.engine:run("membership", self.key, { "leave", self:id() }, nil, PATIENCE)
end

-- Without a plate there is no script yet, and nothing to share. Where there is no room, all are heard.
local function turn(self)
  if not self.engine.scripts.members then return false end
  local ours, why = self.dict:safe_add(TURN_OF, true, TURN)
  return ours or why == "no memory"
end

local function every(premature, self)
  if premature then return leave(self) end
  if turn(self) then
    local fine, why = pcall(self.beat, self)
    if not fine then ngx.log(ngx.ERR, "headgate: ", why) end
  end
  timer_at(TICK, every, self)
end

-- From a worker's beginning on.
function Members:start()
  if self.fixed then return end
  local dict = self.dict
  self:id()
  dict:safe_add(HEARD, NOTHING)
  dict:safe_add(MISSED, 0)
  dict:safe_add(WORKERS, 0)
  dict:incr(WORKERS, 1)
  timer_at(0, every, self)
end

return M
