-- Takes from several keys under one limit, for states that fit one string: take_many.lua with one MGET for all keys.
--
-- MGET returns nothing for a key of another type, as for a missing one. Only GET reports that; it runs where a missing
-- key is not written, and NX keeps SET from overwriting such a key.
--
-- `model` is the algorithm's; the assembler inserts it above.
local call = redis.call
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local limit, states, reply, done = model.limit(ARGV, 1), {}, {}, 0
local texts = call("MGET", _G.unpack(KEYS)) -- model.unpack is another one
local function take_rest()
  for i = done + 1, #KEYS do
    local key, text = KEYS[i], texts[i]
    local before = states[key]
    if not before and text then
      before = model.unpack(text, limit, now_us)
      if not before then error(wrong_value(key, text)) end
    end
    local verdict, after = model.decide(limit, before, now_us, (ARGV[model.width + i] or 1) + 0, -1)
    if after ~= before then
      local ttl_ms = model.ttl_ms(limit, after, now_us)
      if before then
        if ttl_ms > 0 then
          call("SET", key, model.pack(after, limit), "PX", ttl_ms)
        else
          call("DEL", key)
        end
      elseif ttl_ms <= 0 or not call("SET", key, model.pack(after, limit), "PX", ttl_ms, "NX") then
        call("GET", key)
      end
      states[key] = after
    elseif not before then
      call("GET", key)
    end
    local n = done * 7
    for j = 1, 7 do reply[n + j] = verdict[j] end
    done = i
  end
end
while done < #KEYS do
  local ok, failure = pcall(take_rest)
  if not ok then
    -- An error of one key does not stop the others: continue after it.
    local error_reply = wrong_value(KEYS[done + 1], type(failure) == "table" and failure or { err = failure })
    local error_row = { error_reply, 0, 0, 0, 0, now_us, 0 }
    for j = 1, 7 do reply[done * 7 + j] = error_row[j] end
    done = done + 1
  end
end
return reply
