-- Locks on a shared dict: between reading a count and writing it, no other worker comes in.
--
-- A shared dict cannot compare and set, but it can count. A lock is a number that never goes away:
--
--   epoch * STRIDE + tries
--
-- Whoever adds one and gets tries = 1 has it. To free it is to write the next epoch with no tries. So a lock needs no
-- room in a full dict, and no memory is handed back and forth. There are STRIPES of them, and all counts of a key have
-- the one that the key's last two bytes say, which costs less than a checksum and spreads addresses as well.
--
-- A holder never yields, so it holds for microseconds. Who finds a lock taken looks again a few times, then sleeps a
-- millisecond where the phase allows that; it holds nothing meanwhile. Who may not sleep just looks, some 20 ms long. A
-- worker that was killed while it held a lock leaves it taken: who sees one epoch for EXPIRY seconds ends it, by adding
-- to the epoch, and of several who do so one is the first.
--
-- Laws (tests/nginx/engines/shared/test_two_workers.py, test_clocks.py):
--   - of all workers one holds a lock, unless a holder stands still for EXPIRY while it holds and then goes on;
--   - a lock whose holder died is free again EXPIRY after somebody first waited for it;
--   - several locks are taken all or none, in one order; who waits for one holds none;
--   - who waits for longer than the deadline, or a second, gets a Trouble and has charged nothing.

local M = {}

local STRIDE, STRIPES, WRAP = 2 ^ 20, 64, 2 ^ 52
local SPINS, LONGEST_WAITS, WAIT, EXPIRY = 100, 1000, 0.001, 0.5
local EXPIRY_US = EXPIRY * 1000000
local SLEEPS = {
  rewrite = true, server_rewrite = true, access = true, content = true, timer = true, preread = true,
  ssl_cert = true, ssl_client_hello = true, ssl_session_fetch = true,
}
local NAMES = {}
for i = 0, STRIPES - 1 do NAMES[i] = "c#" .. i end

local byte, floor = string.byte, math.floor
local sleep, get_phase, now_us = ngx.sleep, ngx.get_phase, require("resty.headgate.clock").fine_us
local watched = {}

M.EXPIRY = EXPIRY

-- All locks there are. Said again it changes nothing.
function M.lay(dict)
  for i = 0, STRIPES - 1 do
    local _, trouble = dict:safe_add(NAMES[i], 0)
    if trouble and trouble ~= "exists" then return nil, trouble end
  end
  return true
end

-- Beside each lock a number: the least that no key of slots behind it was ever given. Said again it changes nothing.
function M.lay_fences(dict)
  for i = 0, STRIPES - 1 do dict:safe_add(M.fence_of(NAMES[i]), 0) end
end

function M.fence_of(name) return name .. "f" end

-- The lock of a key's counts.
function M.of(key)
  local a, b = byte(key, -2, -1)
  return NAMES[((a or 0) * 7 + (b or 0)) % STRIPES]
end

function M.free(dict, name, ticket)
  local next_epoch = ticket - ticket % STRIDE + STRIDE
  dict:safe_set(name, next_epoch < WRAP and next_epoch or 0)
end

-- Ends the hold of one who has died: somebody who sees one epoch for so long. Not by nginx's cached clock: after a
-- pause of this worker, or a step of the wall clock, one wait would look like EXPIRY, and a living holder lose its
-- lock.
local function watch(dict, name, value)
  local epoch, at_us, seen = floor(value / STRIDE), now_us(), watched[name]
  if not seen or seen.epoch ~= epoch then
    watched[name] = { epoch = epoch, since_us = at_us }
  elseif at_us - seen.since_us >= EXPIRY_US then
    watched[name] = nil
    local moved = dict:incr(name, STRIDE)
    if moved and floor(moved / STRIDE) == epoch + 1 then
      M.free(dict, name, moved)
      ngx.log(ngx.WARN, "headgate: a worker died while it held ", name, "; its lock was freed after ", EXPIRY, " s.")
    end
  end
end

-- A ticket, or nil and what the lock said last.
local function try(dict, name)
  local value = dict:incr(name, 1)
  if value and value % STRIDE == 1 then return value end
  for _ = 1, SPINS do
    value = dict:get(name)
    if not value then
      dict:safe_add(name, 0)
    elseif value % STRIDE == 0 then
      value = dict:incr(name, 1)
      if value and value % STRIDE == 1 then return value end
    end
  end
  return nil, value
end

local function try_all(dict, names, tickets)
  for i = 1, #names do
    local ticket, value = try(dict, names[i])
    if not ticket then
      M.free_all(dict, names, tickets, i - 1)
      return names[i], value
    end
    tickets[i] = ticket
  end
end

function M.free_all(dict, names, tickets, count)
  for i = count or #names, 1, -1 do M.free(dict, names[i], tickets[i]) end
end

local function gave_up(name, value)
  if not value then
    return { kind = "wrong", text = "The shared dict has no room for its locks: make lua_shared_dict larger." }
  end
  return { kind = "timeout", text = "Other workers held the lock " .. name .. " of the shared dict for too long." }
end

-- How often it is tried, and whether one may sleep in between: the deadline counts where time passes.
local function patience(deadline)
  if not SLEEPS[get_phase()] then return LONGEST_WAITS, false end
  return math.min(LONGEST_WAITS, math.max(1, (deadline or 1) / WAIT)), true
end

-- Tickets for all of these locks, which are in order and each there once; or nil and a Trouble. `deadline` is in
-- seconds.
function M.take_all(dict, names, deadline)
  local tickets, tries = {}, 0
  local most, sleeps
  while true do
    local name, value = try_all(dict, names, tickets)
    if not name then return tickets end
    if not most then most, sleeps = patience(deadline) end
    if value then watch(dict, name, value) end
    if tries >= most then return nil, gave_up(name, value) end
    tries = tries + 1
    if sleeps then sleep(WAIT) end
  end
end

-- The same for one lock, which is nearly always free.
function M.take(dict, name, deadline)
  local value = dict:incr(name, 1)
  if value and value % STRIDE == 1 then return value end
  local tickets, trouble = M.take_all(dict, { name }, deadline)
  if not tickets then return nil, trouble end
  return tickets[1]
end

return M
