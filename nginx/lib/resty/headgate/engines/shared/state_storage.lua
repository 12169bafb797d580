-- Loads and saves states on a shared dict, with a ttl as long as they matter. The twins of
-- lua/commands/string_storage.lua and log_storage.lua.
--
-- A state is the text of its model, padded with blanks to the most that its limit can need: an entry that keeps its
-- length is written in place, so in a full dict an existing count stays. A token bucket of whole microseconds is a
-- number; the pace that it was written at is in the entry's flags. A sliding log is one string of timestamps:
-- newest_us, stamp_us, ahead_us, padding, then one for each unit, the oldest first; it grows by doubling and shrinks
-- when it expires.
--
-- `binding` is a bound limit as the engine has bound it: model, pace, is_number, width. Saving returns false if there
-- is no room, and then the previous state may be gone from the dict: the caller has it, and restores it.
--
-- Law (tests/nginx/engines/shared/test_parity.py, test_clocks.py): the state that is loaded is the one that was saved,
-- and lives as long as its model says, by the real time.

local clock = require "resty.headgate.clock"
local limit_arithmetic = require "resty.headgate.limit_arithmetic"
local timestamps = require "resty.headgate.engines.shared.timestamps"

local M = {}

local floor, max, cached_now_s = math.floor, math.max, clock.now

local PADDING = " "

-- Returns the ttl in seconds of an entry that is to last so many milliseconds from now_us on. nginx counts it from its
-- cached clock, which is behind the real time in a busy worker: the entry would expire that much too early, and its
-- units would be available again. Half a millisecond is added, so that nginx's rounding yields this very millisecond.
local function seconds(ttl_ms, now_us)
  local behind_ms = floor(now_us / 1000) - floor(cached_now_s() * 1000 + 0.5)
  return (max(1, ttl_ms + behind_ms) + 0.5) / 1000
end

local text_storage = {}

function text_storage.load(dict, name, binding, limit, now_us)
  local stored, flags = dict:get(name)
  if not stored then return nil end
  if type(stored) == "number" then
    flags = flags or 0
    if flags == binding.pace then return stored end
    stored = string.format(flags > 0 and "%.0f%03d" or "%.0f", stored, flags)
  end
  local blank = string.find(stored, PADDING, 1, true)
  if blank then stored = string.sub(stored, 1, blank - 1) end
  return binding.model.unpack(stored, limit, now_us)
end

function text_storage.save(dict, name, binding, limit, state, now_us)
  local model = binding.model
  local ttl_ms = model.ttl_ms(limit, state, now_us)
  if ttl_ms <= 0 then return dict:delete(name) end
  if binding.is_number and type(state) == "number" then
    return dict:safe_set(name, state, seconds(ttl_ms, now_us), binding.pace)
  end
  local packed = model.pack(state, limit)
  if type(packed) == "number" then packed = string.format("%.0f", packed) end
  return dict:safe_set(name, packed .. string.rep(PADDING, binding.width - #packed), seconds(ttl_ms, now_us))
end

local log_storage = {}
local HEADER_ENTRIES = 3

local function set_entries(state, body, tail, head)
  state.tail, state.head = tail, head
  state.entry = function(number) return timestamps.at(body, number) end
  return state
end

function log_storage.load(dict, name)
  local stored = dict:get(name)
  if not stored then return nil end
  local newest_us, stamp_us, ahead_us = timestamps.at(stored, 0), timestamps.at(stored, 1), timestamps.at(stored, 2)
  if newest_us >= 2 ^ 53 then newest_us = newest_us - 2 ^ 56 end -- below 0: the log was emptied
  local state = { newest_us = newest_us, stamp_us = stamp_us, ahead_us = ahead_us, size = stored }
  return set_entries(state, stored, HEADER_ENTRIES, #stored / timestamps.WIDTH)
end

-- Returns the units after the change that the state describes (see lua/algorithms/sliding_log.lua). The model passes
-- `size` through for its storage: here it is the stored text that the numbers are positions in.
local function entries_of(state)
  local stored, head, tail, cut = state.size or "", state.head, state.tail, state.cut
  if state.append then
    local appended = string.rep(timestamps.pack(state.newest_us), state.append)
    return timestamps.cut(stored, tail, head - state.append) .. appended
  elseif state.fill_us then
    local filled = string.rep(timestamps.pack(state.fill_us), state.cut_count)
    return filled .. timestamps.cut(stored, tail, cut) .. timestamps.cut(stored, cut + state.cut_count, head)
  elseif cut then
    return timestamps.cut(stored, tail, cut) .. timestamps.cut(stored, cut + state.cut_count, head + state.cut_count)
  end
  return timestamps.cut(stored, tail, head)
end

-- Saves a log, and updates the state to what is stored: it may be decided again.
function log_storage.save(dict, name, binding, limit, state, now_us)
  local ttl_ms = binding.model.ttl_ms(limit, state, now_us)
  if ttl_ms <= 0 then return dict:delete(name) end
  local header = timestamps.pack(state.newest_us) .. timestamps.pack(state.stamp_us) .. timestamps.pack(state.ahead_us)
  local entries = entries_of(state)
  local stored = timestamps.pad(header, entries, state.size)
  state.append, state.cut, state.cut_count, state.fill_us, state.size = nil, nil, nil, nil, stored
  set_entries(state, stored, (#stored - #entries) / timestamps.WIDTH, #stored / timestamps.WIDTH)
  return dict:safe_set(name, stored, seconds(ttl_ms, now_us))
end

-- Returns the storage of a model's states.
function M.for_model(model) return model.keep == "log" and log_storage or text_storage end

-- Returns the bytes of the largest state that charges leave behind, where it is text; a refund, a clock that was set
-- back and a changed limit may leave larger ones. Timestamps have 16 digits, of milliseconds 13.
function M.width(model, limit) return model.max_state_bytes and model.max_state_bytes(limit, limit_arithmetic) or 0 end

M.seconds = seconds

return M
