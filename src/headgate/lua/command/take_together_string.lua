-- Several charges of one algorithm whose states fit one string: take_together.lua with one MGET for them all.
--
-- To MGET a key that holds something else is like one that was never seen. GET says what is wrong, before anything is
-- written, and is asked where a key was not seen.
--
-- `model` is the algorithm's; the assembler puts it above this line.
local call = redis.call
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local texts = call("MGET", _G.unpack(KEYS)) -- model.unpack is another one
local limits, befores, afters, verdicts, pass, at = {}, {}, {}, {}, true, 1

for i, text in ipairs(texts) do
  local limit, before = model.limit(ARGV, at), nil
  if text then before = model.unpack(text, limit, now_us) else call("GET", KEYS[i]) end
  local verdict, after = model.decide(limit, before, now_us, ARGV[at + model.width] + 0, -1)
  if verdict[1] ~= 1 then
    if verdict[1] == -2 then return { verdict } end
    pass = false
  end
  limits[i], befores[i], afters[i], verdicts[i] = limit, before, after, verdict
  at = at + model.width + 1
end

for i, key in ipairs(KEYS) do
  local limit, before, after = limits[i], befores[i], afters[i]
  if not pass and verdicts[i][1] == 1 then
    verdicts[i], after = model.decide(limit, before, now_us, 0, -1)
    verdicts[i][1], verdicts[i][3] = 1, 0
  end
  if after ~= before then
    local ttl_ms = model.ttl_ms(limit, after, now_us)
    if ttl_ms > 0 then
      call("SET", key, model.pack(after, limit), "PX", ttl_ms)
    else
      call("DEL", key)
    end
  end
end
return verdicts
