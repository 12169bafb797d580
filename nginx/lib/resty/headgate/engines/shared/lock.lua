-- Locks on a shared dict: between reading a count and writing it, no other worker changes it.
--
-- A shared dict cannot compare and set, but it can count. A lock is a number that never goes away:
--
--   epoch * STRIDE + tries
--
-- A worker that adds one and gets tries = 1 holds the lock. To free it is to write the next epoch with no tries. So a
-- lock needs no room in a full dict, and no memory is allocated or freed. There are STRIPES of them, and all counts of
-- a key have the one that the key's last two bytes select, which costs less than a checksum and spreads addresses as
-- well.
--
-- A holder never yields, so it holds for microseconds. A worker that finds a lock taken spins a few times, then sleeps
-- a millisecond where the phase allows that; it holds nothing meanwhile. Where it may not sleep it just spins, for some
-- 20 ms. A worker that is killed while it holds a lock leaves it taken: a worker that sees one epoch for EXPIRY_S ends
-- it, by adding to the epoch, and of several that do so one is the first.
--
-- Laws (tests/nginx/engines/shared/test_two_workers.py, test_clocks.py):
--   - of all workers one holds a lock, unless a holder is suspended for EXPIRY_S while it holds and then goes on;
--   - a lock whose holder died is free again EXPIRY_S after another worker first waited for it;
--   - several locks are taken all or none, in one order; a worker that waits for one holds none;
--   - a worker that waits for longer than the deadline, or a second, gets a Failure and has charged nothing.

local M = {}

local STRIDE, STRIPES, WRAP = 2 ^ 20, 64, 2 ^ 52
local MAX_SPINS, MAX_WAITS, WAIT_S, EXPIRY_S = 100, 1000, 0.001, 0.5
local EXPIRY_US = EXPIRY_S * 1000000
local PHASES_THAT_SLEEP = {
  rewrite = true, server_rewrite = true, access = true, content = true, timer = true, preread = true,
  ssl_cert = true, ssl_client_hello = true, ssl_session_fetch = true,
}
local NAMES = {}
for i = 0, STRIPES - 1 do NAMES[i] = "c#" .. i end

local byte, floor = string.byte, math.floor
local sleep, get_phase, now_us = ngx.sleep, ngx.get_phase, require("resty.headgate.clock").monotonic_us
local observed = {}


-- Creates all locks. Calling it again changes nothing.
function M.prepare(dict)
  for i = 0, STRIPES - 1 do
    local _, why = dict:safe_add(NAMES[i], 0)
    if why and why ~= "exists" then return nil, why end
  end
  return true
end

-- Creates a number beside each lock: the next fence of all slots behind it. Calling it again changes nothing.
function M.prepare_fences(dict)
  for i = 0, STRIPES - 1 do dict:safe_add(M.fence_of(NAMES[i]), 0) end
end

function M.fence_of(name) return name .. "f" end

-- Returns the lock of a key's counts.
function M.of(key)
  local a, b = byte(key, -2, -1)
  return NAMES[((a or 0) * 7 + (b or 0)) % STRIPES]
end

function M.free(dict, name, ticket)
  local next_epoch = ticket - ticket % STRIDE + STRIDE
  dict:safe_set(name, next_epoch < WRAP and next_epoch or 0)
end

-- Frees the lock of a worker that died: one that sees the same epoch for EXPIRY_S. Not by nginx's cached clock: after a
-- pause of this worker, or a step of the wall clock, one wait would look like EXPIRY_S, and a living holder would lose
-- its lock.
local function watch(dict, name, value)
  local epoch, at_us, observation = floor(value / STRIDE), now_us(), observed[name]
  if not observation or observation.epoch ~= epoch then
    observed[name] = { epoch = epoch, since_us = at_us }
  elseif at_us - observation.since_us >= EXPIRY_US then
    observed[name] = nil
    local value_now = dict:incr(name, STRIDE)
    if value_now and floor(value_now / STRIDE) == epoch + 1 then
      M.free(dict, name, value_now)
      ngx.log(ngx.WARN, "headgate: a worker died while it held ", name, "; its lock was freed after ", EXPIRY_S, " s.")
    end
  end
end

-- Tries to take a lock. Returns a ticket, or nil and the lock's last value.
local function attempt(dict, name)
  local value = dict:incr(name, 1)
  if value and value % STRIDE == 1 then return value end
  for _ = 1, MAX_SPINS do
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

local function attempt_all(dict, names, tickets)
  for i = 1, #names do
    local ticket, value = attempt(dict, names[i])
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

local function timeout_failure(name, value)
  if not value then
    return { kind = "wrong", text = "The shared dict has no room for its locks: make lua_shared_dict larger." }
  end
  return { kind = "timeout", text = "Other workers held the lock " .. name .. " of the shared dict for too long." }
end

-- Returns how often to try, and whether to sleep in between: the deadline counts only where time passes.
local function wait_budget(deadline)
  if not PHASES_THAT_SLEEP[get_phase()] then return MAX_WAITS, false end
  return math.min(MAX_WAITS, math.max(1, (deadline or 1) / WAIT_S)), true
end

-- Takes all of these locks, which are sorted and unique. Returns tickets; or nil and a Failure. `deadline` is in
-- seconds.
function M.take_all(dict, names, deadline)
  local tickets, tries = {}, 0
  local max_tries, may_sleep
  while true do
    local name, value = attempt_all(dict, names, tickets)
    if not name then return tickets end
    if not max_tries then max_tries, may_sleep = wait_budget(deadline) end
    if value then watch(dict, name, value) end
    if tries >= max_tries then return nil, timeout_failure(name, value) end
    tries = tries + 1
    if may_sleep then sleep(WAIT_S) end
  end
end

-- Takes one lock, which is nearly always free.
function M.take(dict, name, deadline)
  local value = dict:incr(name, 1)
  if value and value % STRIDE == 1 then return value end
  local tickets, failure = M.take_all(dict, { name }, deadline)
  if not tickets then return nil, failure end
  return tickets[1]
end

return M
