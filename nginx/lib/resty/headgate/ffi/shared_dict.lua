-- A shared dict for every request: the results of ngx.shared, in less time.
--
-- In lua-resty-core each of these methods ends in a tail call of a C function. LuaJIT compiles no more than a few such
-- calls in one trace, so most of a request was left to its interpreter. This module calls the functions that
-- lua-resty-core calls.
--
--   :get(key)                                 its value, and its flags if it has some; nil
--   :incr(key, delta)                         the sum; nil and why
--   :safe_set(key, value, seconds, flags)     a number or a text: true; false and why
--   :safe_add, :delete, :expire, :flush_expired, :lpop, :rpush     the dict's own
--
-- Laws (tests/nginx/test_ffi.py): every result is that of ngx.shared. Where lua-resty-core declares other functions
-- than we know, or none, ngx.shared is used.

local ffi = require "ffi"

local M = {}

local C, text_of = ffi.C, ffi.string
local MAX_KEY_BYTES = 65535 -- ngx.shared refuses longer keys
local BUFFER_BYTES = 4096 -- longer values are allocated by nginx
local NGX_OK = 0
local NOTHING, BOOLEAN, NUMBER, TEXT = 0, 1, 3, 4
local SAFE_SET = 4
local PROBE = "?" -- a key that is never there

local value_type, flags, stale, forced = ffi.new "int[1]", ffi.new "int[1]", ffi.new "int[1]", ffi.new "int[1]"
local number, length = ffi.new "double[1]", ffi.new "size_t[1]"
local buffer, text = ffi.new("unsigned char[?]", BUFFER_BYTES), ffi.new "unsigned char *[1]"
local error_message = ffi.new "char *[1]"

local get, incr, store

local Dict = {}
Dict.__index = Dict

function Dict:get(key)
  if #key > MAX_KEY_BYTES then return nil, "key too long" end
  text[0], length[0] = buffer, BUFFER_BYTES
  local code = get(self.zone, key, #key, value_type, text, length, number, flags, 0, stale, error_message)
  if code ~= NGX_OK then return self.native:get(key) end -- it raises the right error
  local stored_type = value_type[0]
  local value
  if stored_type == NUMBER then
    value = number[0]
  elseif stored_type == TEXT then
    local value_at = text[0]
    value = text_of(value_at, length[0])
    if value_at ~= buffer then C.free(value_at) end
  elseif stored_type == BOOLEAN then
    value = text[0][0] ~= 0
  else
    return nil
  end
  if flags[0] == 0 then return value end
  return value, flags[0]
end

function Dict:incr(key, delta)
  if #key > MAX_KEY_BYTES then return nil, "key too long" end
  number[0] = delta
  local code = incr(self.zone, key, #key, number, error_message, 0, 0, 0, forced)
  if code ~= NGX_OK then return nil, text_of(error_message[0]) end
  local sum = number[0]
  return sum
end

function Dict:safe_set(key, value, seconds, user_flags)
  if #key > MAX_KEY_BYTES then return nil, "key too long" end
  local code
  local ms = (seconds or 0) * 1000
  if type(value) == "number" then
    code = store(self.zone, SAFE_SET, key, #key, NUMBER, nil, 0, value, ms, user_flags or 0, error_message, forced)
  else
    code = store(self.zone, SAFE_SET, key, #key, TEXT, value, #value, 0, ms, user_flags or 0, error_message, forced)
  end
  if code == NGX_OK then return true end
  return false, text_of(error_message[0])
end

function Dict:safe_add(key, value, seconds) return self.native:safe_add(key, value, seconds) end

function Dict:delete(key) return self.native:delete(key) end

function Dict:expire(key, seconds) return self.native:expire(key, seconds) end

function Dict:flush_expired(max_count) return self.native:flush_expired(max_count) end

function Dict:lpop(key) return self.native:lpop(key) end

function Dict:rpush(key, value) return self.native:rpush(key, value) end

-- Returns a dict on the zone that nginx has; an error if lua-resty-core is not as we know it.
local function open_zone(native)
  require "resty.core.shdict"
  get, incr, store = C.ngx_http_lua_ffi_shdict_get, C.ngx_http_lua_ffi_shdict_incr, C.ngx_http_lua_ffi_shdict_store
  local dict = setmetatable({ native = native, zone = C.ngx_http_lua_ffi_shdict_udata_to_zone(native[1]) }, Dict)
  if dict.zone == nil or C.free == nil then error "not as we know it" end
  dict:get(PROBE)
  dict:incr(PROBE, 0)
  store(dict.zone, SAFE_SET, PROBE, #PROBE, NOTHING, nil, 0, 0, 0, 0, error_message, forced)
  return dict
end

-- Opens the dict of that name; nil if there is none.
function M.open(name)
  local native = ngx.shared[name]
  if not native then return nil end
  local supported, dict = pcall(open_zone, native)
  return supported and dict or native
end

return M
