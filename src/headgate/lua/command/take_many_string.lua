-- Takes of several keys under one limit, for states that fit one string: take_many.lua with one MGET for them all.
--
-- To MGET a key that holds something else is like one that was never seen; NX keeps such a key from being
-- overwritten.
--
-- `model` is the algorithm's; the assembler puts it above this line.
local call = redis.call
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local limit, known, answer, n = model.limit(ARGV, 1), {}, {}, 0
local texts = call("MGET", _G.unpack(KEYS)) -- model.unpack is another one
for i, key in ipairs(KEYS) do
  local before, text = known[key], texts[i]
  if not before and text then before = model.unpack(text) end
  local verdict, after = model.decide(limit, before, now_us, (ARGV[model.width + i] or 1) + 0, -1)
  for j = 1, 7 do answer[n + j] = verdict[j] end
  if after ~= before then
    known[key] = after
    local ttl_ms = model.ttl_ms(limit, after, now_us)
    if ttl_ms <= 0 then
      call("DEL", key)
    elseif before then
      call("SET", key, model.pack(after), "PX", ttl_ms)
    elseif not call("SET", key, model.pack(after), "PX", ttl_ms, "NX") then
      answer[n + 1] = redis.error_reply("WRONGTYPE Operation against a key holding the wrong kind of value")
    end
  end
  n = n + 7
end
return answer
