-- Reads nginx's variables of the current request, and writes five for other modules of nginx: $headgate_status,
-- $headgate_rule, $headgate_remaining, $headgate_dry_run, $headgate_decision.
--
-- This takes a tenth of the time of ngx.var, which ends in a tail call of a C function: LuaJIT compiles neither that
-- nor the code around it.
--
-- A variable can be written only if the configuration declares it and uses it: by a map, and in a log_format. Which of
-- them are writable is found out once. A written variable stays with its request, also over internal redirects: so the
-- status also marks a request as decided.

local ffi = require "ffi"
local base = require "resty.core.base"
require "resty.core.var" -- declares what is called here

local M = {}

local var, pcall = ngx.var, pcall
local get_request, get_string_buf, text_of = base.get_request, base.get_string_buf, ffi.string
local get, set = ffi.C.ngx_http_lua_ffi_var_get, ffi.C.ngx_http_lua_ffi_var_set
local value, length, error_message = ffi.new("char *[1]"), ffi.new("size_t[1]"), base.get_errmsg_ptr()
local lowercase_buffer = ffi.new("unsigned char[64]")
local error_buffer, error_length = ffi.new("unsigned char[512]"), ffi.new("size_t[1]")
local NGX_OK, NGX_ERROR = 0, -1

-- Returns the value of a variable; nil if there is none.
function M.read(name)
  local code = get(get_request(), name, #name, get_string_buf(#name), 0, value, length, error_message)
  if code == NGX_OK then
    local text = text_of(value[0], length[0])
    return text
  end
  if code == NGX_ERROR then error(text_of(error_message[0])) end
  return nil
end

local writable = {}

local function write_slowly(name, text) var[name] = text end

function M.write(name, text)
  local is_writable = writable[name]
  if is_writable then
    if type(text) == "number" then text = text .. "" end
    error_length[0] = 512
    local code = set(get_request(), name, #name, lowercase_buffer, text, #text, error_buffer, error_length)
    if code == NGX_ERROR then error(text_of(error_buffer, error_length[0])) end
  elseif is_writable == nil then
    writable[name] = pcall(write_slowly, name, text)
  end
end

-- Returns whether the configuration declares and uses a variable; it is empty from now on.
function M.is_writable(name)
  if writable[name] == nil then writable[name] = pcall(write_slowly, name, "") end
  return writable[name]
end

-- Returns the status of the current request, "" if it was not decided; nil if the variable is not writable.
function M.status()
  if not writable.headgate_status then return nil end
  return M.read("headgate_status")
end

return M
