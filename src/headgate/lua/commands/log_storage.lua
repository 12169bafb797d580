-- Stores a sliding log in one string: a header, then a ring of instants. Only what changed is written.
--
--   header   size, head, tail, newest_us, stamp_us, ahead_us: big-endian, 4 bytes and then 7 for each; newest_us is
--            signed, for a log that was emptied
--   ring     7 bytes, big-endian, for the instant of each unit; unit n is in slot n modulo size
--
-- The ring has slots for twice the units held when it was made, at most for the limit's amount unless more are held.
-- The string grows as slots are first used. When a Redis string grows, it doubles its allocation; so once the last slot
-- is in use it is rewritten, which gives the spare half back.
--
-- `model` is the algorithm's; the assembler inserts it above.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local M = {}

local HEADER_FORMAT, INSTANT_FORMAT = ">I4I7I7i7I7I7", ">I7"
local RING_OFFSET, SLOT_BYTES = 39, 7
local MIN_RING_SIZE, MAX_INSTANT_US = 8, 1e16

-- Returns a function that reads the instant of a unit, 8 slots at once: a decision mostly reads neighbours.
local function reader(key, size)
  local block, first, stop = nil, 0, 0
  return function(number)
    local slot = number % size
    if slot < first or slot >= stop then
      local offset = RING_OFFSET + slot * SLOT_BYTES
      block = call("GETRANGE", key, offset, offset + 8 * SLOT_BYTES - 1)
      first, stop = slot, slot + #block / SLOT_BYTES
    end
    if slot + 1 > stop then error(wrong_value(key)) end -- The string was cut off.
    return (unpack(INSTANT_FORMAT, block, (slot - first) * SLOT_BYTES + 1))
  end
end

-- Returns a state, nil, or nil and an error reply if the key holds something else.
function M.load(key)
  local header = redis.pcall("GETRANGE", key, "0", "38")
  if header == "" then
    if call("GET", key) then return nil, wrong_value(key) end -- An empty string is not ours either.
    return nil
  end
  if header.err or #header < RING_OFFSET then return nil, wrong_value(key, header) end
  local size, head, tail, newest_us, stamp_us, ahead_us = unpack(HEADER_FORMAT, header)
  -- Instants have at most 16 digits; the bytes of a text read as larger numbers.
  local is_valid = size > 0 and (tail < head or (tail == head and newest_us < 0)) and head - tail <= size
  if not is_valid or newest_us >= MAX_INSTANT_US or stamp_us >= MAX_INSTANT_US or ahead_us >= MAX_INSTANT_US then
    return nil, wrong_value(key, header)
  end
  return { size = size, head = head, tail = tail, newest_us = newest_us, stamp_us = stamp_us, ahead_us = ahead_us,
    entry = reader(key, size) }
end

-- Returns the slots of units low <= number < high as one string.
local function read(key, size, low, high)
  if low >= high then return "" end
  local from = RING_OFFSET + low % size * SLOT_BYTES
  local to = RING_OFFSET + (high - 1) % size * SLOT_BYTES + SLOT_BYTES - 1
  if from < to then return call("GETRANGE", key, from, to) end
  return call("GETRANGE", key, from, RING_OFFSET + size * SLOT_BYTES - 1) .. call("GETRANGE", key, RING_OFFSET, to)
end

-- Writes slots from unit `low` on, around the end of the ring if necessary.
local function write(key, size, low, slots)
  local start = low % size
  local bytes_to_end = (size - start) * SLOT_BYTES
  local first = #slots <= bytes_to_end and slots or slots:sub(1, bytes_to_end)
  call("SETRANGE", key, RING_OFFSET + start * SLOT_BYTES, first)
  if #slots > bytes_to_end then call("SETRANGE", key, RING_OFFSET, slots:sub(bytes_to_end + 1)) end
end

-- Stores the changes of a state, and leaves it as it is stored now: it may be decided on again.
function M.save(key, limit, state, now_us)
  local ttl_ms = model.ttl_ms(limit, state, now_us)
  if ttl_ms <= 0 then return call("DEL", key) end
  local size, head, tail, append, cut = state.size, state.head, state.tail, state.append, state.cut
  local held = head - tail
  local new_ring, appended

  if append then
    appended = pack(INSTANT_FORMAT, state.newest_us)
    if append > 1 then appended = appended:rep(append) end
    local fits = size and held <= size and size <= math.max(limit.amount, 2 * held) and held * 8 >= size
    if not fits then
      local before = head - append
      local new_size = 2 * held
      if held <= limit.amount then new_size = math.min(limit.amount, math.max(MIN_RING_SIZE, new_size)) end
      if size and size < new_size and before <= size then
        size = new_size -- It has not wrapped yet: every unit keeps its slot in the larger ring.
      else
        new_ring = (size and read(key, size, tail, before) or "") .. appended
        size = new_size
      end
    end
  elseif state.fill_us then
    local older, newer = read(key, size, tail, cut), read(key, size, cut + state.cut_count, head)
    new_ring = pack(INSTANT_FORMAT, state.fill_us):rep(state.cut_count) .. older .. newer
  end
  if new_ring then head, tail = held, 0 end

  local header = pack(HEADER_FORMAT, size, head, tail, state.newest_us, state.stamp_us, state.ahead_us)
  if new_ring then
    call("SET", key, header .. new_ring, "PX", ttl_ms)
  else
    call("SETRANGE", key, "0", header)
    if append then
      write(key, size, head - append, appended)
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
