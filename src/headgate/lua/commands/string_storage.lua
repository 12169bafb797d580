-- Stores a state that fits one string: loaded and saved as a whole, with a TTL as long as it matters.
--
-- `model` is the algorithm's; the assembler inserts it above. Loading returns a state, nil, or nil and an error reply
-- if the key holds something that the model cannot read.
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
