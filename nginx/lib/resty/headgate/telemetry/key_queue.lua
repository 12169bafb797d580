-- Passes keys from all workers to the one that writes to Redis (telemetry/counts_writer.lua), by a list in the shared
-- dict.
--
--   t:keys          entries as JSON: { rule, kind, "hot" or "distinct", number of ten seconds or of the hour, keys }
--   t:keys:bytes    how many bytes they have
--
-- The list has at most MAX_BYTES; then the oldest entries are dropped. So much is kept while Redis does not answer.
-- Where the dict has no room, keys are dropped: nothing is evicted for them.

local cjson = require "cjson"
local clock = require "resty.headgate.clock"
local key_estimates = require "resty.headgate.telemetry.key_estimates"

local M = {}

local LIST, BYTES = "t:keys", "t:keys:bytes"
local MAX_BYTES = 1024 * 1024
local MAX_KEYS = 200 -- in one entry
local MAX_TAKEN_BYTES = 128 * 1024 -- for one write

local KeyQueue = {}
KeyQueue.__index = KeyQueue

function M.new(dict)
  dict:safe_add(BYTES, 0)
  local self = setmetatable({ dict = dict }, KeyQueue)
  key_estimates.collect(function(rule, kind, shape, number, keys) self:put(rule, kind, shape, number, keys) end)
  return self
end

local function push(dict, entry)
  local text = cjson.encode(entry)
  while (dict:get(BYTES) or 0) + #text > MAX_BYTES do
    local dropped = dict:lpop(LIST)
    if not dropped then return end
    dict:incr(BYTES, -#dropped)
  end
  if dict:rpush(LIST, text) then dict:incr(BYTES, #text) end
end

-- Adds keys to the list, in entries of a bounded size.
function KeyQueue:put(rule, kind, shape, number, keys)
  for first = 1, #keys, MAX_KEYS do
    push(self.dict, { rule, kind, shape, number, { unpack(keys, first, math.min(first + MAX_KEYS - 1, #keys)) } })
  end
end

-- Moves what this worker collected to the list. `at_once`: also the hot keys of the ten seconds that have not ended.
function KeyQueue.flush(_, at_once)
  local second = math.floor(clock.now())
  key_estimates.flush(at_once and second or second - 1, at_once)
end

-- Takes entries for one write.
function KeyQueue:take()
  local dict, entries, bytes = self.dict, {}, 0
  while bytes < MAX_TAKEN_BYTES do
    local text = dict:lpop(LIST)
    if not text then
      dict:safe_set(BYTES, 0) -- also what workers that were killed had counted
      break
    end
    dict:incr(BYTES, -#text)
    bytes = bytes + #text
    entries[#entries + 1] = cjson.decode(text)
  end
  return entries
end

return M
