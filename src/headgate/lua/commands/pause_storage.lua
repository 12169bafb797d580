-- Loads the pause of a key for scripts that decide on its counts, and lets it live as long as they do.
--
-- `pause` is the model; the assembler inserts it above, and this file into scripts of limiters that can be paused.
local M = {}

-- Returns the pause as it counts now, nil if there is none, or nil and an error reply. A clock that was set back is
-- put right at once.
function M.load_pause(key, now_us)
  local text = redis.pcall("GET", key)
  if not text then return nil end
  local state = not text.err and pause.unpack(text)
  if not state then return nil, wrong_value(key, text) end
  local current = pause.current_state(state, now_us)
  if current ~= state then
    local ttl_ms = math.max(redis.call("PTTL", key), math.ceil(pause.left_us(current, now_us) / 1000) + 100)
    redis.call("SET", key, pause.pack(current), "PX", ttl_ms)
  end
  return current
end

-- Lets the pause live as long as the count: without it, the count's clock would jump ahead.
function M.outlive(pause_key, count_key)
  local ttl_ms = redis.call("PTTL", count_key)
  if ttl_ms > redis.call("PTTL", pause_key) then redis.call("PEXPIRE", pause_key, ttl_ms) end
end

return M
