-- Binds limits to the shared dict: once, for all decisions.
--
--   model, limit     the limit as its model reads it; of a calendar, the one around now (limit_at)
--   load, save       how its states are stored
--   pace, is_number  the digits that a token bucket's states are written at, as a number; whether they are numbers
--   width            the bytes of the largest state
--   head             what the names of its counts begin with
--   overflow_count   the count of keys for which there is no room
--   is_plain         it has no lockout, so nothing but its count is read
--   shadow           it is decided by itself
--   lockout          how its rule locks out: { binding, limit, head, store }; nil if it does not

local ffi = require "ffi"

local keys = require "resty.headgate.engines.redis.keys"
local lock = require "resty.headgate.engines.shared.lock"
local lockout = require "resty.headgate.algorithms.lockout"
local overflow = require "resty.headgate.engines.shared.overflow"
local sha256 = require "resty.headgate.text.sha256"
local state_storage = require "resty.headgate.engines.shared.state_storage"
local timestamps = require "resty.headgate.engines.shared.timestamps"

local M = {}

-- All entries of this engine begin with one letter: others share the dict.
local KEY_PREFIX, OVERFLOW_KEY = "c", "overflow"
local MAX_ENTRIES, MAX_KEY_BYTES = 1000, 200
local EXTRA_STATE_BYTES = 4 * 17 -- what refunds, clocks that were set back and changed limits add to a state
local PERCENT, HASH = 37, 35
local CLOCK_SKEW_US = 100000
local byte = string.byte

-- Returns the name of a key's count. A head ends with the only brace it has, so a key need not be escaped here to keep
-- names distinct; but long keys are hashed, and so are those that look as if they were.
function M.count_name(head, key)
  if #key > MAX_KEY_BYTES or (byte(key, 1) == PERCENT and byte(key, 2) == HASH) then
    return head .. "%#" .. sha256(key) .. "}"
  end
  return head .. key .. "}"
end

-- Returns why a limit cannot be decided on a shared dict: a sentence, or nil.
function M.reason_unsupported(limit)
  local model = require("resty.headgate.algorithms." .. limit.algorithm)
  local amount = model.limit(limit.numbers, 1).amount
  if not model.unit_entry or amount <= MAX_ENTRIES then return nil end
  return table.concat {
    limit.text or "A limit", " would keep ", model.unit_entry.name, " for each of ", limit.numbers[1], " units; on a ",
    "shared dict every decision copies them, so there may be at most ", MAX_ENTRIES,
    ". Count it in Redis, or by another algorithm.",
  }
end

-- Returns the bytes of the largest state, also of one that a changed limit has left.
local function max_state_bytes(model, limit, width)
  if not model.unit_entry then return width + EXTRA_STATE_BYTES end
  return timestamps.capacity(limit.amount * model.unit_entry.timestamps + 3) * timestamps.WIDTH
end

local function bind_lockout(dict, options, prefix)
  if not options.lockout then return nil end
  local storage, limit = state_storage.for_model(lockout), lockout.limit(options.lockout, 1)
  local width = state_storage.width(lockout, limit)
  local binding = { model = lockout, pace = 0, width = width, load = storage.load, save = storage.save }
  local head = KEY_PREFIX .. keys.head(prefix, "lockout", options.rule)
  return { binding = binding, limit = limit, head = head, store = dict }
end

-- Returns the limit at this instant: the windows of a calendar are computed anew when it leaves them, or when another
-- worker, whose clock is ahead by CLOCK_SKEW_US, may have.
function M.limit_at(binding, zones, now_us)
  local limit = binding.limit
  if not binding.calendar then return limit end
  if limit[4] and limit[1] <= now_us and now_us < limit[4] - CLOCK_SKEW_US then return limit end
  local calendar = require "resty.headgate.calendar"
  binding.limit = binding.model.limit(calendar.numbers(binding.calendar, zones, now_us), 1)
  return binding.limit
end

-- LuaJIT leaves its compiled code for math.fmod, but not for the C function behind it: so a decision takes half the
-- time.
ffi.cdef "double fmod(double x, double y);"
local FAST_ENVIRONMENT = {
  ipairs = ipairs, tonumber = tonumber, type = type, string = string, table = table,
  math = setmetatable({ fmod = ffi.C.fmod }, { __index = math }),
}

local function model_of(algorithm)
  local model = require("resty.headgate.algorithms." .. algorithm)
  setfenv(model.decide, FAST_ENVIRONMENT)
  return model
end

function M.bind(dict, bound_limit, prefix)
  local limit_spec, options = bound_limit.limit, bound_limit.options
  local model = model_of(limit_spec.algorithm)
  local storage, limit = state_storage.for_model(model), model.limit(limit_spec.numbers, 1)
  local binding = {
    model = model, decide = model.decide, load = storage.load, save = storage.save, limit = limit,
    width = state_storage.width(model, limit), pace = 0, is_number = false,
    calendar = limit_spec.calendar and limit_spec or nil, head = KEY_PREFIX .. bound_limit.head,
    shadow = options.shadow, lockout = bind_lockout(dict, options, prefix), is_plain = not options.lockout,
  }
  if model.is_held then lock.prepare_fences(dict) end
  if model.state_pace then binding.pace, binding.is_number = model.state_pace(limit) end
  local max_bytes = max_state_bytes(model, limit, binding.width)
  binding.overflow_count = overflow.reserve_count(dict, binding.head .. OVERFLOW_KEY .. "}", max_bytes)
  return binding
end

return M
