-- Reports every change of an adaptive limit: in the error log (level notice), as a count for the metrics, and, where
-- counts are shared through Redis, to the worker that writes them there, for `headgate top`.
--
--   t:A:<reason>:<rule>   how often a limit changed for a reason, by its number
--   t:A:i:<number>        reason and rule of each count        t:A:n      how many there are
--   t:A:list              changes to share
--
-- Law (tests/nginx/adaptive/test_adaptive_telemetry.py): every change is counted once, and RecentLimitChange in Python
-- reads what was shared.

local cjson = require "cjson"
local clock = require "resty.headgate.clock"
local reasons = require "resty.headgate.adaptive.reasons"

local M = {}

local COUNT, NAME, NUMBER_OF_NAMES, LIST = "t:A:", "t:A:i:", "t:A:n", "t:A:list"
local MAX_SHARED = 20 -- changes in one write: the newest
local MAX_WAITING = 1000 -- while Redis does not answer

local format = string.format

local LimitChanges = {}
LimitChanges.__index = LimitChanges

-- `is_shared`: whether somebody takes the changes.
function M.new(dict, is_shared)
  dict:safe_add(NUMBER_OF_NAMES, 0)
  return setmetatable({ dict = dict, is_shared = is_shared }, LimitChanges)
end

local function count_name(rule, reason) return COUNT .. reasons.NUMBERS[reason] .. ":" .. rule end

local function count(dict, rule, reason)
  local name = count_name(rule, reason)
  if dict:incr(name, 1) then return end
  if dict:safe_add(name, 1) then
    local number = dict:incr(NUMBER_OF_NAMES, 1)
    if number then dict:safe_set(NAME .. format("%d", number), reasons.NUMBERS[reason] .. ":" .. rule) end
  else
    dict:incr(name, 1) -- another worker was faster; or there is no room
  end
end

-- Reports a change. `binding`: of engines/adaptive/bindings.lua.
function LimitChanges:add(binding, key, before, after, reason)
  local rule = binding.rule.name
  ngx.log(ngx.NOTICE, 'headgate: the limit of the rule "', rule, '" is ', after, " ", binding.unit, ", after ", before,
    ": ", reason, ".")
  count(self.dict, rule, reason)
  if not self.is_shared then return end
  local change = cjson.encode { format("%d", clock.wall_us()), rule, key, before, after, reason }
  local waiting = self.dict:rpush(LIST, change)
  if waiting and waiting > MAX_WAITING then self.dict:lpop(LIST) end
end

-- Returns the newest changes since the last call, and forgets them: { at_us, rule, key, before, after, reason } each,
-- the time as text: a number of JSON has 14 digits here.
function LimitChanges:take()
  local changes, text = {}, self.dict:lpop(LIST)
  while text do
    local change = cjson.decode(text)
    if #changes == MAX_SHARED then table.remove(changes, 1) end
    changes[#changes + 1] = change
    text = self.dict:lpop(LIST)
  end
  return changes
end

-- Returns { rule, reason, count } of each.
function LimitChanges:read()
  local dict, rows = self.dict, {}
  for number = 1, dict:get(NUMBER_OF_NAMES) or 0 do
    local name = dict:get(NAME .. format("%d", number))
    local reason, rule = string.match(name or "", "^(%d+):(.*)$")
    local counted = reason and dict:get(COUNT .. name)
    if counted then rows[#rows + 1] = { rule = rule, reason = reasons.TEXTS[tonumber(reason)], count = counted } end
  end
  return rows
end

return M
