-- Writes header fields of the response, as ngx.header does: response_headers["Retry-After"] = "3". ngx.header ends in a
-- tail call of a C function; shared_dict.lua tells what that costs.
--
-- Law (tests/nginx/test_ffi.py): sends what ngx.header would have sent. Where lua-resty-core declares another function
-- than we know, ngx.header is used.

local ffi = require "ffi"
local base = require "resty.core.base"
require "resty.core.response" -- declares what is called here

local get_request = base.get_request
local set_header = ffi.C.ngx_http_lua_ffi_set_resp_header
local error_message = ffi.new "char *[1]"
local NGX_OK, NGX_DECLINED = 0, -5

local function write(_, name, value)
  if type(value) ~= "string" then value = value .. "" end
  local code = set_header(get_request(), name, #name, false, value, #value, nil, 0, 1, error_message)
  if code ~= NGX_OK and code ~= NGX_DECLINED then ngx.header[name] = value end -- it raises the right error
end

return setmetatable({}, { __newindex = write })
