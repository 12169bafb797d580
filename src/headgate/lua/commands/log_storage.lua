-- How a sliding log is kept: one string, a header and then a ring of instants. Only what changed is written.
--
--   header   size, head, tail, newest_us, stamp_us, ahead_us: big-endian, 4 bytes and then 7 for each; newest_us is
--            signed, for a log that was emptied
--   ring     7 bytes, big-endian, for the instant of each unit; unit n is in slot n modulo size
--
-- The ring is laid for twice the units held at the time, at most for the limit's amount unless more are held. The
-- string grows as slots are first used. Growing, a Redis string doubles its space; so once the last slot is in use it
-- is rewritten, which gives the spare half back.
--
-- `model` is the algorithm's; the assembler puts it above this line.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local M = {}

local HEADER, INSTANT = ">I4I7I7i7I7I7", ">I7"
local RING, WIDTH = 39, 7
local FEWEST, LATEST = 8, 1e16

-- Reads 8 slots at once: a decision looks at neighbours more often than not.
local function reader(key, size)
  local block, first, stop = nil, 0, 0
  return function(number)
    local slot = number % size
    if slot < first or slot >= stop then
      local at = RING + slot * WIDTH
      block = call("GETRANGE", key, at, at + 8 * WIDTH - 1)
      first, stop = slot, slot + #block / WIDTH
    end
    if slot + 1 > stop then error(wrong_value(key)) end -- The string was cut off.
    return (unpack(INSTANT, block, (slot - first) * WIDTH + 1))
  end
end

-- Answers a state, nil, or nil and the error reply where the key holds something else.
function M.load(key)
  local header = redis.pcall("GETRANGE", key, "0", "38")
  if header == "" then
    if call("GET", key) then return nil, wrong_value(key) end -- An empty string is not ours either.
    return nil
  end
  if header.err or #header < RING then return nil, wrong_value(key, header) end
  local size, head, tail, newest_us, stamp_us, ahead_us = unpack(HEADER, header)
  -- Instants have 16 digits, which the bytes of texts have not.
  local ordered = size > 0 and (tail < head or (tail == head and newest_us < 0)) and head - tail <= size
  if not ordered or newest_us >= LATEST or stamp_us >= LATEST or ahead_us >= LATEST then
    return nil, wrong_value(key, header)
  end
  return { size = size, head = head, tail = tail, newest_us = newest_us, stamp_us = stamp_us, ahead_us = ahead_us,
    entry = reader(key, size) }
end

-- The slots of units low <= number < high as one string.
local function read(key, size, low, high)
  if low >= high then return "" end
  local from, to = RING + low % size * WIDTH, RING + (high - 1) % size * WIDTH + WIDTH - 1
  if from < to then return call("GETRANGE", key, from, to) end
  return call("GETRANGE", key, from, RING + size * WIDTH - 1) .. call("GETRANGE", key, RING, to)
end

local function write(key, size, low, slots)
  local start = low % size
  local room = (size - start) * WIDTH
  call("SETRANGE", key, RING + start * WIDTH, #slots <= room and slots or slots:sub(1, room))
  if #slots > room then call("SETRANGE", key, RING, slots:sub(room + 1)) end
end

-- Leaves the state as it is now stored: it may be asked again.
function M.save(key, limit, state, now_us)
  local ttl_ms = model.ttl_ms(limit, state, now_us)
  if ttl_ms <= 0 then return call("DEL", key) end
  local size, head, tail, append, cut = state.size, state.head, state.tail, state.append, state.cut
  local held = head - tail
  local laid, fresh

  if append then
    fresh = pack(INSTANT, state.newest_us)
    if append > 1 then fresh = fresh:rep(append) end
    local fits = size and held <= size and size <= math.max(limit.amount, 2 * held) and held * 8 >= size
    if not fits then
      local before = head - append
      local wanted = 2 * held
      if held <= limit.amount then wanted = math.min(limit.amount, math.max(FEWEST, wanted)) end
      if size and size < wanted and before <= size then
        size = wanted -- Never gone round: every unit keeps its slot in the larger ring.
      else
        laid = (size and read(key, size, tail, before) or "") .. fresh
        size = wanted
      end
    end
  elseif state.fill_us then
    local older, newer = read(key, size, tail, cut), read(key, size, cut + state.cut_count, head)
    laid = pack(INSTANT, state.fill_us):rep(state.cut_count) .. older .. newer
  end
  if laid then head, tail = held, 0 end

  local header = pack(HEADER, size, head, tail, state.newest_us, state.stamp_us, state.ahead_us)
  if laid then
    call("SET", key, header .. laid, "PX", ttl_ms)
  else
    call("SETRANGE", key, "0", header)
    if append then
      write(key, size, head - append, fresh)
      if head >= size and head - append < size then call("SET", key, call("GET", key)) end
    elseif cut then
      local newer = read(key, size, cut + state.cut_count, head + state.cut_count)
      if newer ~= "" then write(key, size, cut, newer) end
    end
    call("PEXPIRE", key, ttl_ms)
  end
  state.size, state.head, state.tail, state.entry = size, head, tail, reader(key, size)
  state.append, state.cut, state.cut_count, state.fill_us = nil, nil, nil, nil
end

return M
