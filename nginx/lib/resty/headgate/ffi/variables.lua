-- nginx's variables: those of the current request are read, and four are written for other modules of nginx:
-- $headgate_status, $headgate_rule, $headgate_remaining, $headgate_dry_run.
--
-- They are read as ngx.var reads them, but in a tenth of the time: ngx.var ends in a call, in last place, of what is
-- not Lua, and LuaJIT compiles neither that nor what is around it. So they are written, too.
--
-- A variable can be written only if the configuration has it and uses it: a map, and a log_format. Which of them can,
-- is found out once. A variable that was written stays with its request, over internal redirects too: so the status
-- also tells that a request was decided.

local ffi = require "ffi"
local base = require "resty.core.base"
require "resty.core.var" -- declares what is called here

local M = {}

local var, pcall = ngx.var, pcall
local get_request, get_string_buf, text_of = base.get_request, base.get_string_buf, ffi.string
local get, set = ffi.C.ngx_http_lua_ffi_var_get, ffi.C.ngx_http_lua_ffi_var_set
local value, length, message = ffi.new("char *[1]"), ffi.new("size_t[1]"), base.get_errmsg_ptr()
local small, why, why_length = ffi.new("unsigned char[64]"), ffi.new("unsigned char[512]"), ffi.new("size_t[1]")
local FINE, FAILED = 0, -1

-- The value of a variable; nil if there is none.
function M.read(name)
  local code = get(get_request(), name, #name, get_string_buf(#name), 0, value, length, message)
  if code == FINE then
    local found = text_of(value[0], length[0])
    return found
  end
  if code == FAILED then error(text_of(message[0])) end
  return nil
end

local writable = {}

local function put(name, said) var[name] = said end

function M.write(name, said)
  local can = writable[name]
  if can then
    if type(said) == "number" then said = said .. "" end
    why_length[0] = 512
    local code = set(get_request(), name, #name, small, said, #said, why, why_length)
    if code == FAILED then error(text_of(why, why_length[0])) end
  elseif can == nil then
    writable[name] = pcall(put, name, said)
  end
end

-- What became of the current request, "" if nothing yet; nil if the variable cannot tell.
function M.status()
  if not writable.headgate_status then return nil end
  return M.read("headgate_status")
end

return M
