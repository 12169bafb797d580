-- Decides one charge on one key whose state fits one string, and saves it if it passes.
--
-- The same as take.lua with string_storage.lua inlined: two functions fewer, and this is the script that runs most.
-- take.lua documents its KEYS, ARGV and reply.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local key, limit, before = KEYS[1], model.limit(ARGV, 1), nil
local cost, patience_us = (ARGV[model.width + 1] or 1) + 0, (ARGV[model.width + 2] or -1) + 0
local text = redis.pcall("GET", key)
if text then
  before = not text.err and model.unpack(text, limit, now_us)
  if not before then return wrong_value(key, text) end
end
local verdict, after = model.decide(limit, before, now_us, cost, patience_us)
if after ~= before then
  local ttl_ms = model.ttl_ms(limit, after, now_us)
  if ttl_ms > 0 then
    redis.call("SET", key, model.pack(after, limit), "PX", ttl_ms)
  else
    redis.call("DEL", key)
  end
end
return verdict
