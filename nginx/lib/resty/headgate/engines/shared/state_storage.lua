-- How states are kept on a shared dict: loaded whole, saved whole, with a life as long as they matter. The twins of
-- lua/commands/string_storage.lua and log_storage.lua.
--
-- A state is its model's own text, filled up with blanks to the most that its limit can need: an entry that keeps its
-- length is written in place, so in a full dict whoever has a count keeps it. A token bucket of whole microseconds is a
-- number; the pace that it was written at stands in the entry's flags. A sliding log is one string of instants:
-- newest_us, stamp_us, ahead_us, blanks of long ago, then a unit each, the oldest first; it grows by doubling
-- and shrinks when it dies.
--
-- `own` is a hand as the engine has bound it: model, pace, whole, width. Saving answers false if there is no room, and
-- then what was kept before may be gone from the dict: who saves has it, and puts it back.
--
-- Law (tests/nginx/engines/shared/test_parity.py, test_clocks.py): what is loaded is what was saved, and lives as long
-- as its model says, by the real time.

local clock = require "resty.headgate.clock"
local instants = require "resty.headgate.engines.shared.timestamps"

local M = {}

local floor, max, cached_s = math.floor, math.max, clock.now

local BLANK, NUMBER = " ", 24

-- The life of an entry that is to last so many milliseconds from now_us on, in seconds. nginx counts it from its cached
-- clock, which is behind the real time in a busy worker: the entry would die that much too early, and its units be
-- there again. Half a millisecond more, so that what nginx makes of the fraction is this very millisecond.
local function seconds(ttl_ms, now_us)
  local late_ms = floor(now_us / 1000) - floor(cached_s() * 1000 + 0.5)
  return (max(1, ttl_ms + late_ms) + 0.5) / 1000
end

local text = {}

function text.load(dict, name, own, limit, now_us)
  local kept, flags = dict:get(name)
  if not kept then return nil end
  if type(kept) == "number" then
    flags = flags or 0
    if flags == own.pace then return kept end
    kept = string.format(flags > 0 and "%.0f%03d" or "%.0f", kept, flags)
  end
  local blank = string.find(kept, BLANK, 1, true)
  if blank then kept = string.sub(kept, 1, blank - 1) end
  return own.model.unpack(kept, limit, now_us)
end

function text.save(dict, name, own, limit, state, now_us)
  local model = own.model
  local ttl_ms = model.ttl_ms(limit, state, now_us)
  if ttl_ms <= 0 then return dict:delete(name) end
  if own.whole and type(state) == "number" then return dict:safe_set(name, state, seconds(ttl_ms, now_us), own.pace) end
  local packed = model.pack(state, limit)
  if type(packed) == "number" then packed = string.format("%.0f", packed) end
  return dict:safe_set(name, packed .. string.rep(BLANK, own.width - #packed), seconds(ttl_ms, now_us))
end

local function digits(number) return #string.format("%.17g", number) end

-- The bytes of the largest state that charges leave behind; a refund, a clock that was set back and a changed limit may
-- leave larger ones. Instants have 16 digits, of milliseconds 13.
local WIDTHS = {
  token_bucket = function(limit) return 16 + 3 + 1 + digits(limit.amount) end,
  fixed_window = function(limit) return 16 + 1 + digits(limit.amount) + 1 + 16 end,
  leaky_bucket = function(limit) return digits(limit.capacity) + 1 + 13 end,
  sliding_window = function(limit)
    return digits(limit.cell_us) + digits(limit.cells) + 16 + 3 + limit.cells * (digits(limit.amount) + 1)
  end,
  smooth = function(limit)
    return NUMBER + 16 + 16 + digits(limit.rate) + digits(limit.warmup_us) + digits(limit.shape) + 5
  end,
  lockout = function(limit) return 16 + 1 + digits(limit.after) end,
}

local log = {}
local HEADER = 3

local function units(state, body, tail, head)
  state.tail, state.head = tail, head
  state.entry = function(number) return instants.at(body, number) end
  return state
end

function log.load(dict, name)
  local kept = dict:get(name)
  if not kept then return nil end
  local newest_us, stamp_us, ahead_us = instants.at(kept, 0), instants.at(kept, 1), instants.at(kept, 2)
  if newest_us >= 2 ^ 53 then newest_us = newest_us - 2 ^ 56 end -- below 0: the log was emptied
  local state = { newest_us = newest_us, stamp_us = stamp_us, ahead_us = ahead_us, size = kept }
  return units(state, kept, HEADER, #kept / instants.WIDTH)
end

-- The units that are held after what the state says was done (see lua/algorithms/sliding_log.lua). `size` is carried
-- along by the model for its keeper: here it is the text that the numbers are places in.
local function laid(state)
  local kept, head, tail, cut = state.size or "", state.head, state.tail, state.cut
  if state.append then
    return instants.cut(kept, tail, head - state.append) .. string.rep(instants.pack(state.newest_us), state.append)
  elseif state.fill_us then
    local filled = string.rep(instants.pack(state.fill_us), state.cut_count)
    return filled .. instants.cut(kept, tail, cut) .. instants.cut(kept, cut + state.cut_count, head)
  elseif cut then
    return instants.cut(kept, tail, cut) .. instants.cut(kept, cut + state.cut_count, head + state.cut_count)
  end
  return instants.cut(kept, tail, head)
end

-- Leaves the state as it is now stored: it may be asked again.
function log.save(dict, name, own, limit, state, now_us)
  local ttl_ms = own.model.ttl_ms(limit, state, now_us)
  if ttl_ms <= 0 then return dict:delete(name) end
  local header = instants.pack(state.newest_us) .. instants.pack(state.stamp_us) .. instants.pack(state.ahead_us)
  local held = laid(state)
  local kept = instants.roomy(header, held, state.size)
  state.append, state.cut, state.cut_count, state.fill_us, state.size = nil, nil, nil, nil, kept
  units(state, kept, (#kept - #held) / instants.WIDTH, #kept / instants.WIDTH)
  return dict:safe_set(name, kept, seconds(ttl_ms, now_us))
end

-- How a model's states are kept.
function M.of(model) return model.keep == "log" and log or text end

function M.width(algorithm, limit) return WIDTHS[algorithm] and WIDTHS[algorithm](limit) or 0 end

M.seconds = seconds

return M
