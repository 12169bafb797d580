-- Stores a bucket in a hash that an operator configured: in one field beside the configuration, so that both live
-- and die together.
--
--   hg2   the packed state, when it was written, and the limit it was computed under (amount, period_us, burst)
--
-- A bucket that another script stored has its permits and when they were counted (in milliseconds) in fields of their
-- own: where there is no hg2 yet, the bucket continues from those.
--
-- Reading returns nil and an error reply if there is no key, no hash, or a state that cannot be read.
--
-- `model` is the token bucket's, with the functions that parse its configuration; the assembler inserts it above.
local M = {}

local NO_KEY = "ERR headgate: the script needs one key. Write EVALSHA <sha> 1 <key>, and then its arguments."

-- Reads these fields of the hash.
function M.read(key, ...)
  if not key then return nil, { err = NO_KEY } end
  local fields = redis.pcall("HMGET", key, ...)
  if fields.err then return nil, wrong_value(key, fields) end
  return fields
end

-- Returns the state of a bucket that another script stored: `foreign` has its permits, and the millisecond of that
-- count. A value that cannot be parsed counts as no permits, or as now, so it hands out nothing.
local function state_of_other_script(limit, foreign, now_us)
  if not foreign[1] then return nil end
  local permits = tonumber(string.match(foreign[1], "^%d+")) or 0
  local at_ms = foreign[2] and tonumber(string.match(foreign[2], "^[%d%.e+]+$"))
  local at_us = at_ms and math.min(math.floor(at_ms * 1000), now_us) or now_us
  local _, state = model.decide(limit, nil, at_us, math.max(0, limit.burst - permits), -1)
  return state
end

-- Loads the state. The instant of writing tells the model how full the bucket was if the clock has stepped back
-- behind it. `since_us`: if the limit has changed, it changed no earlier than this.
function M.load(key, text, limit, now_us, foreign, since_us)
  if not text then return state_of_other_script(limit, foreign, now_us) end
  local packed, stamp, amount, period_us, burst = string.match(text, "^(%d+:?%d*)%S* (%d+) (%d+) (%d+) (%d+)$")
  if not packed then return nil, wrong_value(key) end
  local old_limit = { amount = tonumber(amount), period_us = tonumber(period_us), burst = tonumber(burst) }
  if tonumber(stamp) > now_us then packed = packed .. (string.find(packed, ":") and ":" or ":0:") .. stamp end
  local state = model.unpack(packed)
  if not state then return nil, wrong_value(key) end
  if old_limit.amount == limit.amount and old_limit.period_us == limit.period_us and old_limit.burst == limit.burst then
    return state
  end
  return model.carried(model.decide, old_limit, limit, state, since_us or tonumber(stamp), now_us)
end

-- Stores the state, and the limit it was computed under.
function M.save(key, limit, state, now_us)
  local packed = model.pack(state)
  if type(packed) == "number" then packed = string.format("%.0f", packed) end
  local numbers = string.format("%.0f %.0f %.0f %.0f", now_us, limit.amount, limit.period_us, limit.burst)
  redis.call("HSET", key, "hg2", packed .. " " .. numbers)
end

return M
