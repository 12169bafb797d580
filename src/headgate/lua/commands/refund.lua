-- Refunds what one charge still holds, or charges units that it used beyond its cost; returns the state after it.
--
-- KEYS[1]  the count
-- KEYS[2]  its pause, if it can be paused
-- ARGV     units (of a surcharge negative), cancel (1|0), then the receipt: cost, at_us, reset_after_us, delay_us,
--          mark, returned; then the limit
-- returns  as a take of cost 0 does; of a cancellation also whether anything was given back (1|0)
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local key = KEYS[1]
local paused_us, state = 0, nil
if KEYS[2] then
  local error_reply
  state, error_reply = load_pause(KEYS[2], now_us)
  if error_reply then return error_reply end
  paused_us = pause.left_us(state, now_us)
  now_us = pause.clock_us(state, now_us, model.has_edges)
end
local limit = model.limit(ARGV, 9)
local receipt = {
  cost = tonumber(ARGV[3]),
  at_us = tonumber(ARGV[4]),
  reset_after_us = tonumber(ARGV[5]),
  delay_us = tonumber(ARGV[6]),
  mark = tonumber(ARGV[7]),
  returned = tonumber(ARGV[8]),
}
local before, error_reply = storage.load(key, limit, now_us)
if error_reply then return error_reply end
local units = tonumber(ARGV[1])
local after
if units < 0 then
  after = model.surcharge(limit, before, now_us, -units, receipt)
else
  after = model.refund(limit, before, now_us, units, receipt, ARGV[2] == "1")
end
if after then
  storage.save(key, limit, after, now_us - paused_us)
  if state then outlive(KEYS[2], key) end
end
local verdict = model.decide(limit, after or before, now_us, 0, -1)
if ARGV[2] == "1" then verdict[8] = after and 1 or 0 end
return verdict
