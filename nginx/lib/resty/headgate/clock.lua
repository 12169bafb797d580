-- The time of this machine in microseconds, the same in all workers: for lengths of time only, it tells no date.
--
-- nginx's own clock counts milliseconds, and stands still while a worker is busy. A unit of a limit of 1,000/s is there
-- for a millisecond: who reads that clock comes half of the time too late.
--
-- Law: it never steps back (on Linux, where it is the monotonic one).

local ffi = require "ffi"

ffi.cdef [[
int headgate_clock(int kind, long *into) __asm__("clock_gettime");
]]

local M = {}

local C = ffi.C
local KIND = ffi.os == "Linux" and 1 or 0
local into = ffi.new("long[2]")

function M.now_us()
  C.headgate_clock(KIND, into)
  return tonumber(into[0]) * 1000000 + tonumber(into[1]) / 1000
end

return M
