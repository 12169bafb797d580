-- A hand as this engine has it: bound once, asked often.
--
--   model, limit    the limit as its model reads it; of a calendar, the one around now (limit_at)
--   load, save      how its states are kept
--   pace, whole     the digits that a token bucket's states are written at, as a number; whether they are numbers
--   width           the bytes of the largest state
--   head            what the names of its counts begin with
--   spare           where keys are counted that find no room
--   plain, aside    nothing beside its counts is looked at; it is decided by itself
--   lockout         how its rule locks out: { own, limit, head }; nil if it does not

local ffi = require "ffi"

local instants = require "resty.headgate.engines.shared.timestamps"
local keeps = require "resty.headgate.engines.shared.state_storage"
local lock = require "resty.headgate.engines.shared.lock"
local lockout = require "resty.headgate.algorithms.lockout"
local naming = require "resty.headgate.engines.redis.keys"
local room = require "resty.headgate.engines.shared.overflow"
local sha256 = require "resty.headgate.text.sha256"

local M = {}

-- One letter for all that this engine keeps: others share the dict.
local OURS, SPARE = "c", "overflow"
local MOST_UNITS, LONGEST_KEY = 1000, 200
local NOTES = 4 * 17 -- what refunds, clocks that were set back and changed limits add to a state
local PERCENT, HASH = 37, 35
local SWING_US = 100000
local byte = string.byte

-- The name of a key's count. A head ends with the only brace it has, so a key need not be escaped here to keep names
-- apart; but long ones are hashed, and so are those that look as if they were.
function M.named(head, key)
  if #key > LONGEST_KEY or (byte(key, 1) == PERCENT and byte(key, 2) == HASH) then
    return head .. "%#" .. sha256(key) .. "}"
  end
  return head .. key .. "}"
end

-- Why a limit cannot be followed on a shared dict: a sentence, or nil.
function M.refuses(limit)
  local algorithm = limit.algorithm
  if algorithm ~= "sliding_log" and algorithm ~= "slots" then return nil end
  if tonumber(limit.numbers[1]) <= MOST_UNITS then return nil end
  local each = algorithm == "slots" and "a lease" or "an instant"
  return table.concat {
    limit.text or "A limit", " would keep ", each, " for each of ", limit.numbers[1], " units; on a shared dict every ",
    "decision copies them, so there may be at most ", MOST_UNITS, ". Count it in Redis, or by another algorithm.",
  }
end

-- The bytes of the largest state, also of one that a changed limit has left.
local function most_bytes(algorithm, limit, width)
  if algorithm == "sliding_log" then return instants.room(limit.amount + 3) * instants.WIDTH end
  if algorithm == "slots" then return instants.room(limit.amount * 2 + 3) * instants.WIDTH end
  return width + NOTES
end

local function locking(dict, terms, prefix)
  if not terms.lockout then return nil end
  local keep, limit = keeps.of(lockout), lockout.limit(terms.lockout, 1)
  local own = { model = lockout, pace = 0, width = keeps.width("lockout", limit), load = keep.load, save = keep.save }
  return { own = own, limit = limit, head = OURS .. naming.head(prefix, "lockout", terms.rule), store = dict }
end

-- The limit around now: a calendar's windows are worked out anew when it leaves them, or a worker whose clock is ahead
-- by a swing may have.
function M.limit_at(own, zones, now_us)
  local limit = own.limit
  if not own.calendar or (limit[4] and limit[1] <= now_us and now_us < limit[4] - SWING_US) then return limit end
  local calendar = require "resty.headgate.calendar"
  own.limit = own.model.limit(calendar.numbers(own.calendar, zones, now_us), 1)
  return own.limit
end

-- LuaJIT leaves its compiled code for math.fmod, but not for the C function that it is: so a decision takes half the
-- time.
ffi.cdef "double fmod(double x, double y);"
local COMPILED = {
  ipairs = ipairs, tonumber = tonumber, type = type, string = string, table = table,
  math = setmetatable({ fmod = ffi.C.fmod }, { __index = math }),
}

local function model_of(algorithm)
  local model = require("resty.headgate.algorithms." .. algorithm)
  setfenv(model.decide, COMPILED)
  return model
end

function M.bind(dict, hand, prefix)
  local said, terms = hand.limit, hand.terms
  local algorithm = said.algorithm
  local model = model_of(algorithm)
  local keep, limit = keeps.of(model), model.limit(said.numbers, 1)
  local own = {
    model = model, decide = model.decide, load = keep.load, save = keep.save, limit = limit,
    width = keeps.width(algorithm, limit), pace = 0, whole = false, calendar = said.calendar and said or nil,
    head = OURS .. hand.head, aside = terms.aside, lockout = locking(dict, terms, prefix), plain = not terms.lockout,
  }
  if algorithm == "slots" then lock.lay_fences(dict) end
  if algorithm == "token_bucket" then
    own.pace, own.whole = tonumber(string.sub(limit.pace or "", 1, 3)) or 0, limit.amount == 1
  end
  own.spare = room.spare(dict, own.head .. SPARE .. "}", most_bytes(algorithm, limit, own.width))
  return own
end

return M
