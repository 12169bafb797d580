-- How a bucket is kept in a hash that somebody configured: in one field beside the configuration, so that both live
-- and die together.
--
--   hg2   the packed state, when it was written, and the limit it was reckoned under (amount, period_us, burst)
--
-- A bucket that was kept by another script has its permits and when they were counted (in milliseconds) in fields of
-- their own: where there is no hg2 yet, the bucket goes on from those.
--
-- Reading answers nil and the error reply where there is no key, no hash, or a state that cannot be read.
--
-- `model` is the token bucket's and what reads its configuration; the assembler puts it above this line.
local M = {}

local NO_KEY = "ERR headgate: the script needs one key. Write EVALSHA <sha> 1 <key>, and then its arguments."

-- These fields of the hash.
function M.read(key, ...)
  if not key then return nil, { err = NO_KEY } end
  local fields = redis.pcall("HMGET", key, ...)
  if fields.err then return nil, wrong_value(key, fields) end
  return fields
end

-- The state of a bucket that another script kept: `written` has its permits, and the millisecond of that count. What
-- cannot be read counts as no permits, or as now, so it hands out nothing.
local function taken_over(limit, written, now_us)
  if not written[1] then return nil end
  local held = tonumber(string.match(written[1], "^%d+")) or 0
  local at_ms = written[2] and tonumber(string.match(written[2], "^[%d%.e+]+$"))
  local at_us = at_ms and math.min(math.floor(at_ms * 1000), now_us) or now_us
  local _, state = model.decide(limit, nil, at_us, math.max(0, limit.burst - held), -1)
  return state
end

-- With the instant of writing the model can tell how full the bucket was when the clock has stepped back behind it.
-- `since_us`: if the limit is another one now, the change came no earlier than this.
function M.load(key, text, limit, now_us, written, since_us)
  if not text then return taken_over(limit, written, now_us) end
  local packed, stamp, amount, period_us, burst = string.match(text, "^(%d+:?%d*)%S* (%d+) (%d+) (%d+) (%d+)$")
  if not packed then return nil, wrong_value(key) end
  local old = { amount = tonumber(amount), period_us = tonumber(period_us), burst = tonumber(burst) }
  if tonumber(stamp) > now_us then packed = packed .. (string.find(packed, ":") and ":" or ":0:") .. stamp end
  local state = model.unpack(packed)
  if not state then return nil, wrong_value(key) end
  if old.amount == limit.amount and old.period_us == limit.period_us and old.burst == limit.burst then
    return state
  end
  return model.carried(model.decide, old, limit, state, since_us or tonumber(stamp), now_us)
end

function M.save(key, limit, state, now_us)
  local packed = model.pack(state)
  if type(packed) == "number" then packed = string.format("%.0f", packed) end
  local numbers = string.format("%.0f %.0f %.0f %.0f", now_us, limit.amount, limit.period_us, limit.burst)
  redis.call("HSET", key, "hg2", packed .. " " .. numbers)
end

return M
