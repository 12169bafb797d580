-- Handles a full dict. A live count is never evicted for another one, and no call passes uncounted.
--
-- Expired entries are swept out, at most every 100 ms in each worker. If there is still no room for a new key, its
-- charge goes to one count of its bound limit that all such keys share: the key `overflow`. Its entry is reserved when
-- the limit is bound, as large as a state can get, and padded with blanks so that it is written in place ever after.
-- The outcome says so (outcome.overflow), and so does one line in the log every 10 s.
--
--   kind (n: a number, s: a text), flags in 3 digits, length in 6, the state, blanks
--
-- Laws (tests/nginx/engines/shared/test_overflow.py): keys that have a count are decided as before, unless it is a log
-- or a list of leases that must grow; all others together get no more than one key would.

local M = {}

local SWEEP_INTERVAL_S, SWEEP_BATCH, LOG_INTERVAL_S = 0.1, 1000, 10
local RETENTION_S = 86400
local now = require("resty.headgate.clock").now
local swept_at, logged_at = -SWEEP_INTERVAL_S, -LOG_INTERVAL_S

local function time_if_due(last_at, interval_s)
  local at = now()
  if at >= last_at and at - last_at < interval_s then return nil end
  return at
end

-- Removes expired entries; returns whether there were any.
function M.sweep(dict)
  local at = time_if_due(swept_at, SWEEP_INTERVAL_S)
  if not at then return false end
  swept_at = at
  return dict:flush_expired(SWEEP_BATCH) > 0
end

function M.log_full(consequence)
  local at = time_if_due(logged_at, LOG_INTERVAL_S)
  if not at then return end
  logged_at = at
  ngx.log(ngx.ERR, "headgate: the shared dict is full: ", consequence, ". Make lua_shared_dict larger.")
end

local OverflowCount = {}
OverflowCount.__index = OverflowCount

-- Reserves an overflow count: it has the methods of a dict, and holds one state of at most `max_bytes`.
function M.reserve_count(dict, name, max_bytes)
  local padding = string.rep(" ", max_bytes)
  local count = setmetatable({ dict = dict, name = name, max_bytes = max_bytes, padding = padding }, OverflowCount)
  count:reserve()
  return count
end

local function pack_frame(self, kind, flags, state)
  local head = string.format("%s%03d%06d", kind, flags, #state)
  return head .. state .. string.sub(self.padding, #state + 1)
end

function OverflowCount:reserve()
  local empty = pack_frame(self, "s", 0, "")
  local done, why = self.dict:safe_add(self.name, empty)
  if not done and why == "no memory" and M.sweep(self.dict) then done = self.dict:safe_add(self.name, empty) end
  if not done and why == "no memory" then M.log_full("there is no room to reserve for " .. self.name) end
end

function OverflowCount:get()
  local text = self.dict:get(self.name)
  if not text then return nil end
  local length = tonumber(string.sub(text, 5, 10))
  if length == 0 then return nil end
  local state = string.sub(text, 11, 10 + length)
  if string.sub(text, 1, 1) == "n" then return tonumber(state), tonumber(string.sub(text, 2, 4)) end
  return state
end

function OverflowCount:safe_set(_, state, _, flags)
  if type(state) == "number" then
    return self.dict:safe_set(self.name, pack_frame(self, "n", flags or 0, string.format("%.0f", state)))
  end
  return self.dict:safe_set(self.name, pack_frame(self, "s", 0, state))
end

function OverflowCount:delete() return self:safe_set(nil, "") end

-- Its bound limit is gone: keeps the count for a day, for workers that still follow the previous bundle.
function OverflowCount:expire() self.dict:expire(self.name, RETENTION_S) end

-- Its bound limit is in use: keeps the count for ever.
function OverflowCount:keep() self.dict:expire(self.name, 0) end

return M
