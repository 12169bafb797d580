-- The counts of all workers since nginx started, in the shared dict. Each worker adds its counts once a second; they
-- survive a reload.
--
--   t:n            how many rules have counts          t:<letter>:<rule>    a count
--   t:i:<number>   the name of a rule                  t:k:<rule>           it has a number
--   t:workers      how many workers live
--
-- Where the dict has no room, a worker keeps its counts and tries again; nothing is evicted for them.
--
-- Laws (tests/nginx/telemetry/test_decision_counts.py): no count is lost or moved twice, whatever the number of
-- workers, over a reload and a graceful exit.

local clock = require "resty.headgate.clock"
local decision_counts = require "resty.headgate.telemetry.decision_counts"

local M = {}

local LETTERS = decision_counts.LETTERS
local NAME_COUNT, NAME, HAS_NUMBER, TOTAL, WORKERS = "t:n", "t:i:", "t:k:", "t:", "t:workers"
local OFFSET_S = 0.005 -- after a second has ended

local SharedTotals = {}
SharedTotals.__index = SharedTotals

-- `flush_others(at_once)`: moves what else this worker collected, whenever the counts are moved.
function M.new(dict, flush_others)
  dict:safe_add(NAME_COUNT, 0)
  dict:safe_add(WORKERS, 0)
  return setmetatable({ dict = dict, flush_others = flush_others, log_full = true }, SharedTotals)
end

-- Gives a rule a number, so that readers find it. Returns false if there is no room.
local function add_name(dict, rule)
  local added, why = dict:safe_add(HAS_NUMBER .. rule, 1)
  if not added then return why == "exists" end
  local number = dict:incr(NAME_COUNT, 1)
  if number and dict:safe_set(NAME .. string.format("%d", number), rule) then return true end
  dict:delete(HAS_NUMBER .. rule)
  return false
end

-- Adds to a total; returns false if there is no room for it.
local function add(dict, rule, letter, count)
  local name = TOTAL .. letter .. ":" .. rule
  if dict:incr(name, count) then return true end
  if not add_name(dict, rule) then return false end
  dict:safe_add(name, 0) -- or another worker does
  return dict:incr(name, count) ~= nil
end

-- Moves the counts of this worker to the dict. `at_once`: also what else waits for the end of a span of time.
function SharedTotals:flush(at_once)
  self.flush_others(at_once)
  for rule, counts in pairs(decision_counts.unmoved()) do
    for i = 1, #LETTERS do
      if counts[i] > 0 then
        if add(self.dict, rule, LETTERS[i], counts[i]) then
          counts[i] = 0
        elseif self.log_full then
          self.log_full = false
          ngx.log(ngx.ERR, "headgate: the shared dict is full: counts of decisions wait in this worker. ",
            "Make lua_shared_dict larger.")
        end
      end
    end
  end
end

-- Returns the totals: by rule a table by letter, without those that are 0.
function SharedTotals:read()
  local dict, totals = self.dict, {}
  for number = 1, dict:get(NAME_COUNT) or 0 do
    local rule = dict:get(NAME .. string.format("%d", number))
    if rule then
      local by_letter = {}
      for i = 1, #LETTERS do by_letter[LETTERS[i]] = dict:get(TOTAL .. LETTERS[i] .. ":" .. rule) end
      totals[rule] = by_letter
    end
  end
  return totals
end

-- Returns the seconds until the next full second and the offset.
function M.delay_until(offset_s)
  local at = clock.now()
  return 1 - at % 1 + offset_s
end

local function on_timer(premature, self)
  self:flush(premature)
  if not premature then
    ngx.timer.at(M.delay_until(OFFSET_S), on_timer, self)
    return
  end
  -- Requests that are still being served are counted at once: no timer will come.
  decision_counts.after_each(function() self:flush(true) end)
  if self.dict:incr(WORKERS, -1) == 0 and self.on_last_exit then self.on_last_exit() end
end

-- Starts the timer of a worker. `on_last_exit` is called when the last worker exits gracefully.
function SharedTotals:start(on_last_exit)
  self.on_last_exit = on_last_exit
  self.dict:incr(WORKERS, 1)
  ngx.timer.at(M.delay_until(OFFSET_S), on_timer, self)
end

return M
