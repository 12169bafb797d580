-- Collects the keys of this worker's decisions by rule: hot keys of ten seconds, and distinct keys. The counterpart of
-- telemetry/key_estimates.py.
--
-- A decision appends its key to a list that belongs to the rule and the verdict. When a list is full, and once a
-- second, it is emptied into the estimates of its kinds; telemetry/key_queue.lua passes these on. Kinds are letters, as
-- docs/reference/storage.md lists them: k calls, r refused, S and C refused by a shadow or a candidate, t tried.
--
-- Law (tests/nginx/telemetry/test_hot_key_parity.py): the keys of one rule take at most 1 MB in a worker, whatever keys
-- come.

local clock = require "resty.headgate.clock"
local hot_keys = require "resty.headgate.telemetry.hot_keys"

local M = { SLICE_S = 10 }

local floor, short_key = math.floor, hot_keys.short_key

local BATCH_SIZE = 256 -- keys that a list holds before it is emptied
local MAX_KEYS = { k = 400, r = 200, S = 200, C = 200 } -- that are kept of ten seconds
local MAX_SHARED = 100 -- hot keys of ten seconds that a worker shares
local MAX_DISTINCT = 512 -- keys that are remembered as shared, and that wait to be

-- By verdict (telemetry/decision_counts.lua): the kinds of hot keys, and of distinct keys.
local HOT = { [1] = "k", [2] = "kr", [3] = "kr", [6] = "k", [7] = "kS", [9] = "C" }
local DISTINCT = { [2] = "r", [3] = "r", [6] = "t", [7] = "tS", [8] = "t", [9] = "tC" }
local VERDICTS = { 1, 2, 3, 6, 7, 8, 9 }

local rules = {}
local passes_on -- called with a rule, a kind, "hot" or "distinct", a number of ten seconds or of an hour, and keys

-- Collects keys from now on, and passes them on to the function.
function M.collect(action) passes_on = action end

local function letters_of(text)
  local letters = {}
  for i = 1, #(text or "") do letters[i] = text:sub(i, i) end
  return letters
end

-- Returns the lists of a rule by verdict; nil if keys are not collected.
function M.new_lists(name)
  if not passes_on then return nil end
  local rule, lists = { name = name, hot = {}, distinct = {}, slice = 0 }, {}
  for _, verdict in ipairs(VERDICTS) do
    lists[verdict] = {
      number = 0, keys = {}, rule = rule, hot = letters_of(HOT[verdict]), distinct = letters_of(DISTINCT[verdict]),
    }
  end
  rule.lists = lists
  rules[#rules + 1] = rule
  return lists
end

local function share_distinct(rule, kind, set)
  if #set.waiting > 0 then passes_on(rule.name, kind, "distinct", set.hour, set.waiting) end
  set.waiting = {}
end

local function add_distinct(rule, kind, hour, list)
  local set = rule.distinct[kind]
  if not set or set.hour ~= hour then
    if set then share_distinct(rule, kind, set) end
    set = { hour = hour, recent = {}, size = 0, waiting = {} }
    rule.distinct[kind] = set
  end
  for i = 1, list.number do
    local key = list.keys[i]
    if not set.recent[key] then
      if set.size >= MAX_DISTINCT then
        share_distinct(rule, kind, set)
        set.recent, set.size = {}, 0
      end
      set.recent[key], set.size = true, set.size + 1
      set.waiting[#set.waiting + 1] = key
    end
  end
end

-- Passes on the top keys of the slice that has ended.
local function close_slice(rule, slice)
  for kind, hot in pairs(rule.hot) do
    local top = hot:take_top(MAX_SHARED)
    if #top > 0 then passes_on(rule.name, kind, "hot", rule.slice, top) end
  end
  rule.slice = slice
end

-- Empties a list into the estimates of a second.
local function empty(list, second)
  local rule, slice = list.rule, floor(second / M.SLICE_S)
  if rule.slice ~= slice then close_slice(rule, slice) end
  for _, kind in ipairs(list.hot) do
    rule.hot[kind] = rule.hot[kind] or hot_keys.new(MAX_KEYS[kind])
    rule.hot[kind]:add(list.keys, list.number)
  end
  for _, kind in ipairs(list.distinct) do add_distinct(rule, kind, floor(second / 3600), list) end
  list.number = 0
end

-- Adds the key of a call to a list.
function M.add(list, key)
  local number = list.number + 1
  if #key > 64 then key = short_key(key) end
  list.keys[number], list.number = key, number
  if number == BATCH_SIZE then empty(list, floor(clock.now())) end
end

-- Empties all lists, as of this second, and passes on what is complete. `at_once`: also the slice that has not ended.
function M.flush(second, at_once)
  for _, rule in ipairs(rules) do
    for _, list in pairs(rule.lists) do
      if list.number > 0 then empty(list, second) end
    end
    local slice = floor((second + 1) / M.SLICE_S)
    if at_once or rule.slice ~= slice then close_slice(rule, slice) end
    for kind, set in pairs(rule.distinct) do share_distinct(rule, kind, set) end
  end
end

return M
