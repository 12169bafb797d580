-- Takes of several keys under one limit, for states that fit one string: take_many.lua with one MGET for them all.
--
-- To MGET a key that holds something else is like one that was never seen. Only GET says what is wrong, and is
-- asked where a key that was not seen is not there to be written; NX keeps what is there from being overwritten.
--
-- `model` is the algorithm's; the assembler puts it above this line.
local call = redis.call
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local limit, known, answer, done = model.limit(ARGV, 1), {}, {}, 0
local texts = call("MGET", _G.unpack(KEYS)) -- model.unpack is another one
local function takes()
  for i = done + 1, #KEYS do
    local key, text = KEYS[i], texts[i]
    local before = known[key]
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
      known[key] = after
    elseif not before then
      call("GET", key)
    end
    local n = done * 7
    for j = 1, 7 do answer[n + j] = verdict[j] end
    done = i
  end
end
while done < #KEYS do
  local fine, why = pcall(takes)
  if not fine then
    -- This key's trouble is not the others': they go on behind it.
    local wrong = { wrong_value(KEYS[done + 1], type(why) == "table" and why or { err = why }), 0, 0, 0, 0, now_us, 0 }
    for j = 1, 7 do answer[done * 7 + j] = wrong[j] end
    done = done + 1
  end
end
return answer
