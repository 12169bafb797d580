-- Decides calls that charge the same limits, one after the other: each call by itself, all of its charges or none. A
-- count that several calls charge sees what the calls before did: it is read once, and if its state fits one string
-- written once.
--
-- KEYS     for each call its counts, in the order of the limits
-- ARGV     how many limits; the numbers of each; then a cost for each key, left out where all are 1
-- returns  now_us; then for each key, in one row, which is less work than a list of lists: allowed, remaining,
--          retry_after_us, reset_after_us, delay_us and mark, as take_all.lua returns them. If a key holds something
--          that is not ours, the first number of its call is an error; or the error is all, if there is no other call
--
-- `model` and `storage` are the algorithm's; the assembler inserts them above.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local charge_count, limits, at = ARGV[1] + 0, {}, 2
for i = 1, charge_count do
  limits[i], at = model.limit(ARGV, at), at + model.width
end
local reply, costs_before = { now_us }, at - 1
local decided, current = 0, 0 -- The keys decided before, and the key at hand.
local befores, afters, verdicts = {}, {}, {}
local states, unsaved = {}, {} -- By key; of a state that is to be saved, the number of its key.

local function decide_rest()
  for first = decided, #KEYS - 1, charge_count do
    local pass, n = true, first * 6 + 1
    for i = 1, charge_count do
      current = first + i
      local key = KEYS[current]
      local before = states[key]
      if not before then
        local error_reply
        before, error_reply = storage.load(key, limits[i], now_us)
        if error_reply then error(error_reply) end
        states[key] = before
      end
      local verdict
      verdict, afters[i] = model.decide(limits[i], before, now_us, (ARGV[costs_before + current] or 1) + 0, -1)
      if verdict[1] ~= 1 then pass = false end
      verdicts[i], befores[i] = verdict, before
    end
    for i = 1, charge_count do
      local verdict, after = verdicts[i], afters[i]
      current = first + i
      if not pass and verdict[1] == 1 then
        verdict, after = model.decide(limits[i], befores[i], now_us, 0, -1)
        verdict[1], verdict[3] = 1, 0
      end
      if after ~= befores[i] then
        local key = KEYS[current]
        states[key] = after
        if model.fits_one_string then
          unsaved[key] = current
        else
          storage.save(key, limits[i], after, now_us)
        end
      end
      reply[n + 1], reply[n + 2], reply[n + 3] = verdict[1], verdict[2], verdict[3]
      reply[n + 4], reply[n + 5], reply[n + 6] = verdict[4], verdict[5], verdict[7]
      n = n + 6
    end
    decided = first + charge_count
  end
end

while decided < #KEYS do
  local ok, failure = pcall(decide_rest)
  if not ok then
    local error_reply = wrong_value(KEYS[current], type(failure) == "table" and failure or { err = failure })
    if #KEYS == charge_count then return error_reply end
    -- An error of one call does not stop the others: continue after it.
    local n = decided * 6 + 1
    for i = n + 1, n + charge_count * 6 do reply[i] = 0 end
    reply[n + 1] = error_reply
    decided = decided + charge_count
  end
end
for i = 1, #KEYS do
  local key = KEYS[i]
  if unsaved[key] == i then storage.save(key, limits[(i - 1) % charge_count + 1], states[key], now_us) end
end
return reply
