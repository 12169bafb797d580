-- Counts the members that share the limits: while Redis answers, and remembered when it does not. The twin of
-- engines/layers/fallback/membership.py.
--
-- This nginx is one member, however many workers it has. It sends a heartbeat every second to the same sorted set as
-- every Python process (lua/commands/membership.lua); the reply is how many are alive and how many of them come before
-- it: its rank. The last reply counts while Redis does not answer. One worker at a time sends heartbeats: the one that
-- finds that the turn of the last one is over. The others read its results from the shared dict, where they also
-- survive a reload:
--
--   m:id       the member's number        m:replies   the last five replies, count and rank of each, the latest first
--   m:turn     a worker has just sent     m:missed    heartbeats in a row that failed
--   m:workers  how many workers live
--
-- All of them are created at the start and written in place ever after, so they need no room in a full dict.
--
-- A count that falls is used after five heartbeats only: a server that came back empty has to receive all heartbeats
-- first, and in the meantime no member should assume that it is alone. The last worker that exits gracefully (nginx -s
-- quit) removes the member; otherwise it counts as dead after five seconds.
--
-- Laws (tests/nginx/engines/test_membership.py):
--   - count and rank are those of the last heartbeat, or of an earlier one that counted more, up to five back; (1, 0)
--     as long as none succeeded; the configured number and no rank, where one is configured;
--   - nginx and Python processes with one prefix on one server count each other, and no two have the same rank;
--   - one member sends about one heartbeat a second, whatever the number of workers, and stays the same one over a
--     reload;
--   - a failed heartbeat changes nothing, and is logged once when the others count this member as dead.

local keys = require "resty.headgate.engines.redis.keys"

local M = {}

local POLL_INTERVAL_S, HEARTBEAT_INTERVAL_S = 0.5, 0.95 -- of each worker, and of all workers together
local CACHE_S = 0.5 -- that a worker uses the position that it last read
local TIMEOUT_S = 1.0 -- of one request to Redis
local TTL_US, HISTORY_SIZE = "5000000", 5
local ID_KEY, HISTORY_KEY, MISSED_KEY, TURN_KEY, WORKERS_KEY = "m:id", "m:replies", "m:missed", "m:turn", "m:workers"

local now, timer_at = require("resty.headgate.clock").now, ngx.timer.at

local Membership = {}
Membership.__index = Membership

-- `engine`: of Redis; `nodes`: the number of members, if it is configured: then Redis is not asked, and this nginx has
-- no rank. It has an equal share (limit_share.lua).
function M.new(engine, dict, prefix, nodes)
  return setmetatable({
    engine = engine, dict = dict, key = keys.members(prefix), count = nodes or 1, rank = nodes == nil and 0 or nil,
    fixed = nodes ~= nil, read_at = -math.huge,
  }, Membership)
end

-- Returns a number that no other member has: 48 random bits. Lua's own random numbers are the same in every process.
local function random_id()
  local file, why = io.open("/dev/urandom", "rb")
  if not file then error("/dev/urandom cannot be read: " .. why, 0) end
  local number = 0
  for _, byte in ipairs { string.byte(file:read(6), 1, 6) } do number = number * 256 + byte end
  file:close()
  return string.format("%.0f", number + 1)
end

-- Returns the member's id, the same in all workers; each caches it, in case the dict drops it.
function Membership:id()
  local id = self.dict:get(ID_KEY)
  if not id then
    self.dict:safe_add(ID_KEY, self.cached_id or random_id())
    id = self.dict:get(ID_KEY) or self.cached_id or random_id()
  end
  self.cached_id = id
  return id
end

local function format_entry(count, rank) return string.format("%8d %8d,", count, rank) end

-- Returns count and rank of the latest of the heartbeats that counted most; nil if none succeeded.
local function largest_count(history)
  local largest, its_rank = 0, nil
  for count, rank in string.gmatch(history or "", "(%d+) +(%d+)") do
    if tonumber(count) > largest then largest, its_rank = tonumber(count), tonumber(rank) end
  end
  return its_rank and largest, its_rank
end

-- Returns how many share the limits, and how many of them come before this nginx, if that is known.
function Membership:position()
  local at = now()
  if self.fixed or (at >= self.read_at and at - self.read_at < CACHE_S) then return self.count, self.rank end
  self.read_at = at
  local count, rank = largest_count(self.dict:get(HISTORY_KEY))
  if count then self.count, self.rank = count, rank end
  return self.count, self.rank
end

local EMPTY_HISTORY = string.rep(format_entry(0, 0), HISTORY_SIZE)

local function record(dict, count, rank)
  local previous = dict:get(HISTORY_KEY) or EMPTY_HISTORY
  dict:safe_set(HISTORY_KEY, string.sub(format_entry(count, rank) .. previous, 1, #EMPTY_HISTORY))
  dict:safe_set(MISSED_KEY, 0)
end

-- Counts failed heartbeats. After five the others count this member as dead.
local function count_missed(self, why)
  local missed = self.dict:incr(MISSED_KEY, 1)
  if missed ~= HISTORY_SIZE then return end
  local count, rank = self:position()
  ngx.log(ngx.WARN, "headgate: the other members have not received a heartbeat of this nginx for ", HISTORY_SIZE,
    " s; it stays number ", rank + 1, " of ", count, ". ", why)
end

function Membership:heartbeat()
  local args = { "heartbeat", self:id(), TTL_US }
  local reply, failure = self.engine:run_script("membership", self.key, args, nil, TIMEOUT_S)
  if reply and reply[2] then return record(self.dict, reply[1], reply[2]) end
  count_missed(self, failure and failure.text or "The reply of Redis is no count of members.")
end

local function leave(self)
  local workers_left = self.dict:incr(WORKERS_KEY, -1)
  if workers_left ~= 0 or not largest_count(self.dict:get(HISTORY_KEY)) then return end
  self.engine:run_script("membership", self.key, { "leave", self:id() }, nil, TIMEOUT_S)
end

-- Returns whether this worker is to send a heartbeat. Without a bundle there is no script yet, and nothing to share.
-- Where the dict has no room, all workers send.
local function is_our_turn(self)
  if not self.engine.scripts.membership then return false end
  local added, why = self.dict:safe_add(TURN_KEY, true, HEARTBEAT_INTERVAL_S)
  return added or why == "no memory"
end

local function on_timer(premature, self)
  if premature then return leave(self) end
  if is_our_turn(self) then
    local ok, why = pcall(self.heartbeat, self)
    if not ok then ngx.log(ngx.ERR, "headgate: ", why) end
  end
  timer_at(POLL_INTERVAL_S, on_timer, self)
end

-- Starts the timer of a worker.
function Membership:start()
  if self.fixed then return end
  local dict = self.dict
  self:id()
  dict:safe_add(HISTORY_KEY, EMPTY_HISTORY)
  dict:safe_add(MISSED_KEY, 0)
  dict:safe_add(WORKERS_KEY, 0)
  dict:incr(WORKERS_KEY, 1)
  timer_at(0, on_timer, self)
end

return M
