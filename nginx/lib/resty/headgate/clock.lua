-- Two clocks, for all who need one.
--
--   now()       nginx's own: seconds since 1970, in steps of a millisecond. It stands still while a worker is busy, and
--               is fresh after each wait
--   ms_us()     the same in microseconds, whole milliseconds: what counts on the shared dict are judged by
--   fine_us()   the machine's, in microseconds, the same in all workers: for lengths of time only, it tells no date. A
--               unit of a limit of 1,000/s is there for a millisecond: who reads nginx's clock comes half of the time
--               too late
--
-- (ngx.now is the same clock as now(), but a call in last place, of what is not Lua, is nothing that LuaJIT compiles,
-- and ngx.now ends in one.)
--
-- Law: fine_us never steps back (on Linux, where it is the monotonic one).

local ffi = require "ffi"
require "resty.core.time" -- declares nginx's

ffi.cdef [[
int headgate_clock(int kind, long *into) __asm__("clock_gettime");
]]

local C, floor = ffi.C, math.floor
local now = C.ngx_http_lua_ffi_now
local KIND = ffi.os == "Linux" and 1 or 0
local into = ffi.new("long[2]")

local M = { now = now }

function M.ms_us() return floor(now() * 1000 + 0.5) * 1000 end

function M.fine_us()
  C.headgate_clock(KIND, into)
  return tonumber(into[0]) * 1000000 + tonumber(into[1]) / 1000
end

return M
