-- A shared dict, as it is asked for every request: what ngx.shared answers, in less time.
--
-- In lua-resty-core each of these ends in a call, in last place, of what is not Lua. LuaJIT compiles no more than a few
-- such calls in one piece, so most of a request was left to its interpreter. We call what lua-resty-core calls.
--
--   :get(key)                                 its value, and its flags if it has some; nil
--   :incr(key, by)                            the sum; nil and why
--   :safe_set(key, value, seconds, flags)     a number or a text: true; false and why
--   :safe_add, :delete, :expire, :flush_expired     the dict's own
--
-- Laws (tests/nginx/test_ffi.py): whatever is asked, the answer is that of ngx.shared. Where lua-resty-core declares
-- other functions than we know, or none, it is ngx.shared that answers.

local ffi = require "ffi"

local M = {}

local C, text_of = ffi.C, ffi.string
local LONGEST = 65535 -- bytes of a key
local ROOM = 4096 -- bytes of a text for which nginx need not find room itself
local FINE = 0
local NOTHING, BOOLEAN, NUMBER, TEXT = 0, 1, 3, 4
local SAFE_SET = 4
local PROBE = "?" -- a key that is never there

local kind, flags, stale, forced = ffi.new "int[1]", ffi.new "int[1]", ffi.new "int[1]", ffi.new "int[1]"
local number, length = ffi.new "double[1]", ffi.new "size_t[1]"
local buffer, text, message = ffi.new("unsigned char[?]", ROOM), ffi.new "unsigned char *[1]", ffi.new "char *[1]"

local get, incr, store

local Dict = {}
Dict.__index = Dict

function Dict:get(key)
  if #key > LONGEST then return nil, "key too long" end
  text[0], length[0] = buffer, ROOM
  local code = get(self.zone, key, #key, kind, text, length, number, flags, 0, stale, message)
  if code ~= FINE then return self.plain:get(key) end -- it knows what to say
  local found = kind[0]
  local value
  if found == NUMBER then
    value = number[0]
  elseif found == TEXT then
    local from = text[0]
    value = text_of(from, length[0])
    if from ~= buffer then C.free(from) end
  elseif found == BOOLEAN then
    value = text[0][0] ~= 0
  else
    return nil
  end
  if flags[0] == 0 then return value end
  return value, flags[0]
end

function Dict:incr(key, by)
  if #key > LONGEST then return nil, "key too long" end
  number[0] = by
  local code = incr(self.zone, key, #key, number, message, 0, 0, 0, forced)
  if code ~= FINE then return nil, text_of(message[0]) end
  local sum = number[0]
  return sum
end

function Dict:safe_set(key, value, seconds, said)
  if #key > LONGEST then return nil, "key too long" end
  local code
  local ms = (seconds or 0) * 1000
  if type(value) == "number" then
    code = store(self.zone, SAFE_SET, key, #key, NUMBER, nil, 0, value, ms, said or 0, message, forced)
  else
    code = store(self.zone, SAFE_SET, key, #key, TEXT, value, #value, 0, ms, said or 0, message, forced)
  end
  if code == FINE then return true end
  return false, text_of(message[0])
end

function Dict:safe_add(key, value, seconds) return self.plain:safe_add(key, value, seconds) end

function Dict:delete(key) return self.plain:delete(key) end

function Dict:expire(key, seconds) return self.plain:expire(key, seconds) end

function Dict:flush_expired(most) return self.plain:flush_expired(most) end

-- Where nginx has the dict; an error if lua-resty-core is not as we know it.
local function found(plain)
  require "resty.core.shdict"
  get, incr, store = C.ngx_http_lua_ffi_shdict_get, C.ngx_http_lua_ffi_shdict_incr, C.ngx_http_lua_ffi_shdict_store
  local dict = setmetatable({ plain = plain, zone = C.ngx_http_lua_ffi_shdict_udata_to_zone(plain[1]) }, Dict)
  if dict.zone == nil or C.free == nil then error "not as we know it" end
  dict:get(PROBE)
  dict:incr(PROBE, 0)
  store(dict.zone, SAFE_SET, PROBE, #PROBE, NOTHING, nil, 0, 0, 0, 0, message, forced)
  return dict
end

-- The dict of that name; nil if there is none.
function M.open(name)
  local plain = ngx.shared[name]
  if not plain then return nil end
  local known, dict = pcall(found, plain)
  return known and dict or plain
end

return M
