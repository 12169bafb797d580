-- How a state is kept that fits one string: loaded whole, saved whole, with a life as long as it matters.
-- `model` is the algorithm's; the assembler puts it above this line. Loading answers a state, nil, or nil and the error
-- reply where the key holds something that the model cannot read.
local M = {}

function M.load(key, limit, now_us)
  local text = redis.pcall("GET", key)
  if not text then return nil end
  local state = not text.err and model.unpack(text, limit, now_us)
  if state then return state end
  return nil, wrong_value(key, text)
end

function M.save(key, limit, state, now_us)
  local ttl_ms = model.ttl_ms(limit, state, now_us)
  if ttl_ms > 0 then
    redis.call("SET", key, model.pack(state, limit), "PX", ttl_ms)
  else
    redis.call("DEL", key)
  end
end

return M
