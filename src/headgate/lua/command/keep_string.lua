-- How a state is kept that fits one string: loaded whole, saved whole, with a life as long as it matters.
-- `model` is the algorithm's; the assembler puts it above this line.
local M = {}

function M.load(key, limit, now_us)
  local text = redis.call("GET", key)
  if text then return model.unpack(text, limit, now_us) end
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
