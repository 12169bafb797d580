-- What is done when the dict is full. A live count is never thrown out for another one, and nobody passes uncounted.
--
-- What has expired is swept out, not more often than every 100 ms in each worker. If a new key still finds no room, its
-- charge is counted under one count of its hand that all such keys share: the key `overflow`. Its room is taken when
-- the hand is bound, as large as a state can get, and filled up with blanks so that it is written in place ever after.
-- The facts say so (facts.overflow), and so does one line in the log every 10 s.
--
--   kind (n: a number, s: a text), flags in 3 digits, length in 6, the state, blanks
--
-- Laws (tests/nginx/engines/shared/test_overflow.py): keys that have a count are decided as ever, unless it is a log or
-- a list of leases that must grow; all others together get no more than one key would.

local M = {}

local SWEEP_EVERY, SWEPT, TELL_EVERY = 0.1, 1000, 10
local KEPT_FOR = 86400
local now = require("resty.headgate.clock").now
local swept_at, told_at = -SWEEP_EVERY, -TELL_EVERY

local function due(before, every)
  local at = now()
  if at >= before and at - before < every then return nil end
  return at
end

-- Whether room was made.
function M.make(dict)
  local at = due(swept_at, SWEEP_EVERY)
  if not at then return false end
  swept_at = at
  return dict:flush_expired(SWEPT) > 0
end

function M.tell(what)
  local at = due(told_at, TELL_EVERY)
  if not at then return end
  told_at = at
  ngx.log(ngx.ERR, "headgate: the shared dict is full: ", what, ". Make lua_shared_dict larger.")
end

local Spare = {}
Spare.__index = Spare

-- A place that looks like a dict and holds one state. `most`: the bytes that it can have.
function M.spare(dict, name, most)
  local spare = setmetatable({ dict = dict, name = name, most = most, blank = string.rep(" ", most) }, Spare)
  spare:reserve()
  return spare
end

local function framed(self, kind, flags, kept)
  local head = string.format("%s%03d%06d", kind, flags, #kept)
  return head .. kept .. string.sub(self.blank, #kept + 1)
end

function Spare:reserve()
  local empty = framed(self, "s", 0, "")
  local done, trouble = self.dict:safe_add(self.name, empty)
  if not done and trouble == "no memory" and M.make(self.dict) then done = self.dict:safe_add(self.name, empty) end
  if not done and trouble == "no memory" then M.tell("there is no room to reserve for " .. self.name) end
end

function Spare:get()
  local text = self.dict:get(self.name)
  if not text then return nil end
  local length = tonumber(string.sub(text, 5, 10))
  if length == 0 then return nil end
  local kept = string.sub(text, 11, 10 + length)
  if string.sub(text, 1, 1) == "n" then return tonumber(kept), tonumber(string.sub(text, 2, 4)) end
  return kept
end

function Spare:safe_set(_, kept, _, flags)
  if type(kept) == "number" then
    return self.dict:safe_set(self.name, framed(self, "n", flags or 0, string.format("%.0f", kept)))
  end
  return self.dict:safe_set(self.name, framed(self, "s", 0, kept))
end

function Spare:delete() return self:safe_set(nil, "") end

-- Its hand is gone: it is kept for a day, for workers that still follow the former plate.
function Spare:leave() self.dict:expire(self.name, KEPT_FOR) end

-- Its hand is back.
function Spare:stay() self.dict:expire(self.name, 0) end

return M
