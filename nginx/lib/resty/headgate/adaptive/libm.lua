-- The functions of the C library that Python's math module calls. Lua's own may round differently (LuaJIT computes
-- powers by itself), and two that differ in the last bit come to different limits in time.

local ffi = require "ffi"

ffi.cdef [[
double headgate_exp(double) __asm__("exp");
double headgate_expm1(double) __asm__("expm1");
double headgate_log(double) __asm__("log");
double headgate_pow(double, double) __asm__("pow");
]]

local C = ffi.C

return { exp = C.headgate_exp, expm1 = C.headgate_expm1, log = C.headgate_log, pow = C.headgate_pow }
