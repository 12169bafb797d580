-- Hot keys: which keys called most, or were refused most, in ten seconds, without storing every key. The twin of
-- telemetry/hot_keys.py, which explains Space-Saving in batches: all keys are counted until there are twice as many as
-- may be kept; then the lesser half is dropped, and the largest count that was dropped is added to the floor. No key's
-- count is too low, and each is too high by the floor at most.
--
-- Knows no nginx. A worker has the current ten seconds only: when they end, the top keys go to Redis.
--
-- Laws (tests/nginx/telemetry/test_hot_key_parity.py): the same batches give the same keys and counts as in Python; a
-- long key is shortened to the same text.

local sha256 = require "resty.headgate.text.sha256"

local M = {}

local byte, sub, sort = string.byte, string.sub, table.sort

local MAX_KEY_BYTES = 64 -- a longer key is shown by its beginning and a digest
local DIGEST_DIGITS = 16

local HotKeys = {}
HotKeys.__index = HotKeys

-- `max_keys`: that are kept when the lesser half is dropped.
function M.new(max_keys) return setmetatable({ max_keys = max_keys, counts = {}, size = 0, floor = 0 }, HotKeys) end

-- Returns the key; of a long one its beginning and a digest, so that memory is bounded and keys differ.
function M.short_key(key)
  if #key <= MAX_KEY_BYTES then return key end
  local cut = MAX_KEY_BYTES - DIGEST_DIGITS - 1
  while cut > 0 do
    local next_byte = byte(key, cut + 1)
    if next_byte < 0x80 or next_byte > 0xBF then break end -- no character is cut in two
    cut = cut - 1
  end
  return sub(key, 1, cut) .. "~" .. sub(sha256(key), 1, DIGEST_DIGITS)
end

local function descending(one, other) return one > other end

local function drop_lesser_half(self)
  local values = {}
  for _, count in pairs(self.counts) do values[#values + 1] = count end
  sort(values, descending)
  local dropped, kept, size = values[self.max_keys + 1], {}, 0
  for key, count in pairs(self.counts) do
    if count > dropped then kept[key], size = count - dropped, size + 1 end
  end
  self.counts, self.size, self.floor = kept, size, self.floor + dropped
end

-- Counts the first `number` keys of a list.
function HotKeys:add(keys, number)
  local counts, size = self.counts, self.size
  for i = 1, number do
    local key = keys[i]
    local count = counts[key]
    if not count then size = size + 1 end
    counts[key] = (count or 0) + 1
  end
  self.size = size
  if size > 2 * self.max_keys then drop_lesser_half(self) end
end

-- Returns the keys with the largest counts in a flat list: key, count, ...; and begins anew.
function HotKeys:take_top(number)
  local counts, floor, names = self.counts, self.floor, {}
  for key in pairs(counts) do names[#names + 1] = key end
  sort(names, function(one, other)
    if counts[one] ~= counts[other] then return counts[one] > counts[other] end
    return one < other
  end)
  local top = {}
  for i = 1, math.min(number, #names) do
    top[2 * i - 1], top[2 * i] = names[i], counts[names[i]] + floor
  end
  self.counts, self.size, self.floor = {}, 0, 0
  return top
end

return M
