-- Runs a model file outside of any server, so that Lua 5.1 and LuaJIT can be compared with Python.
--
--   lua5.1 driver.lua MODEL_DIR ALGORITHM < walk
--
-- Each line of the walk is one of
--   limit  ARG...                                        a new limit; the state is kept
--   forget                                               the state is dropped
--   decide NOW COST PATIENCE                             patience -1 is a take
--   refund NOW UNITS CANCEL COST AT RESET DELAY MARK RETURNED     CANCEL is 0 or 1
--   surcharge                                                     with the same words
-- and each answers one line: the seven numbers (or 0 / 1 for the last two), then the packed state ("-" for none).

local model = dofile(arg[1] .. "/" .. arg[2] .. ".lua")
local limit, state, written  -- the last: the limit that the state was kept under

-- A log's units are kept beside its state: what is to be kept is first written there.
local function kept(after) return after end
if model.keep == "log" then kept = dofile(string.match(arg[0], "^(.*/)") .. "sliding_log_units.lua") end

local function words(line)
  local out = {}
  for word in string.gmatch(line, "%S+") do out[#out + 1] = word end
  return out
end

local function numbers(fields)
  local out = {}
  for i, value in ipairs(fields) do out[i] = string.format("%.17g", value) end
  return table.concat(out, " ")
end

-- A packed state may be a bare number, which a server would write out by itself.
local function packed()
  local text = state and model.pack(state, written) or "-"
  return type(text) == "number" and string.format("%.17g", text) or text
end

-- The state as one of the limit that asks: one of another pace is carried over.
local function seen()
  if not state or not limit.pace or limit.pace == written.pace then return state end
  return model.unpack(model.pack(state, written), limit)
end

for line in io.lines() do
  local word = words(line)
  local verb = table.remove(word, 1)
  if verb == "limit" then
    limit = model.limit(word, 1)
  elseif verb == "forget" then
    state = nil
  elseif verb == "decide" then
    local now_us, cost, patience_us = tonumber(word[1]), tonumber(word[2]), tonumber(word[3])
    local before = seen()
    local verdict, after = model.decide(limit, before, now_us, cost, patience_us)
    if after ~= before then state, written = kept(after), limit end
    print(numbers(verdict) .. " " .. packed())
  elseif verb == "refund" or verb == "surcharge" then
    local n = {}
    for i, text in ipairs(word) do n[i] = tonumber(text) end
    local receipt = { cost = n[4], at_us = n[5], reset_after_us = n[6], delay_us = n[7], mark = n[8], returned = n[9] }
    local after = model[verb](limit, seen(), n[1], n[2], receipt, n[3] == 1)
    if after then state, written = kept(after), limit end
    print((after and "1 " or "0 ") .. packed())
  end
end
