-- Reads three clocks: nginx's cached one, the real time, and one that never steps.
--
--   now()       nginx's cached clock: seconds since 1970, in milliseconds. It stops while a worker is busy, and
--               is fresh after each wait. Each worker has its own, so two of them are milliseconds apart: use it for
--               deadlines and pauses within one worker
--   wall_us()   the real time in whole microseconds since 1970, the same in all workers: every instant that one worker
--               writes and another reads is of this clock
--   monotonic_us()  microseconds that never step back, the same in all workers: for durations only, it has no date.
--               nginx's clock is too coarse: a unit of a limit of 1,000/s is there for a millisecond
--
-- Why decisions do not use now(): worker A refuses a call at 5 ms, worker B, whose clock still shows 3 ms, refuses the
-- next one and stamps the state with 3 ms, and then A sees 2 ms pass again. Four workers admit twice a limit of 1,000/s
-- like that. Read wall_us() after the lock is taken: then no worker sees a time before the last writer's.
--
-- (ngx.now is the same clock as now(), but ends in a tail call of a C function, which LuaJIT does not compile.)
--
-- Law: monotonic_us never steps back (on Linux, where it is the monotonic one); wall_us steps when somebody sets the
-- machine's clock, and then steps in all workers at once.

local ffi = require "ffi"
require "resty.core.time" -- declares nginx's

ffi.cdef [[
int headgate_clock(int kind, long *into) __asm__("clock_gettime");
]]

local C = ffi.C
local now = C.ngx_http_lua_ffi_now
local REALTIME, MONOTONIC = 0, ffi.os == "Linux" and 1 or 0
local timespec = ffi.new("long[2]")

local M = { now = now }

function M.wall_us()
  C.headgate_clock(REALTIME, timespec)
  local ns = tonumber(timespec[1])
  return tonumber(timespec[0]) * 1000000 + (ns - ns % 1000) / 1000
end

function M.monotonic_us()
  C.headgate_clock(MONOTONIC, timespec)
  return tonumber(timespec[0]) * 1000000 + tonumber(timespec[1]) / 1000
end

return M
