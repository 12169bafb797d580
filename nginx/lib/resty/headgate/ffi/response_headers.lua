-- The header fields of the response: fields["Retry-After"] = "3", as of ngx.header. That one ends in a call, in last
-- place, of what is not Lua; dict.lua tells what that costs.
--
-- Law (tests/nginx/test_ffi.py): what ngx.header would have sent is sent. It is asked itself where lua-resty-core
-- declares another function than we know.

local ffi = require "ffi"
local base = require "resty.core.base"
require "resty.core.response" -- declares what is called here

local get_request = base.get_request
local set = ffi.C.ngx_http_lua_ffi_set_resp_header
local message = ffi.new "char *[1]"
local FINE, DECLINED = 0, -5

local function put(_, name, value)
  if type(value) ~= "string" then value = value .. "" end
  local code = set(get_request(), name, #name, false, value, #value, nil, 0, 1, message)
  if code ~= FINE and code ~= DECLINED then ngx.header[name] = value end -- it knows what to say
end

return setmetatable({}, { __newindex = put })
