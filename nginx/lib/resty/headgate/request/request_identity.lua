-- The request that nginx is serving at this moment, and whether it was decided already.
--
-- An internal redirect (error_page, index, try_files, ...) runs the access phase again for the same request, and
-- nginx forgets what Lua kept with it. $headgate_status stays, if the configuration has it; so does the request's
-- address in memory, until its log phase has run; and at one address a request is told from the one before it by its
-- connection and by its turn on that. So nothing depends on a log phase: without ours, an address that is used again
-- means nothing to a new request.
--
-- Laws (tests/nginx/request/test_hostile_requests.py): a request is decided once, however often it is redirected and
-- whoever asks again; two requests on one connection are two.

local ffi = require "ffi"
local get_request = require("resty.core.base").get_request
local variables = require "resty.headgate.ffi.variables"

local M = {}

local ngx, read, status_of = ngx, variables.read, variables.status
local cast, tonumber = ffi.cast, tonumber
local AS_NUMBER = ffi.typeof "uintptr_t"

local connections, turns = {}, {}

-- A number that no other request of this worker has while this one lives.
local function address()
  local found = tonumber(cast(AS_NUMBER, get_request()))
  return found
end
M.address = address

-- Whether this request is still to be decided; from now on it is not. A sub-request belongs to its request.
function M.is_new()
  if ngx.is_subrequest then return false end
  local status = status_of()
  if status then return status == "" end
  local here, connection, turn = address(), read "connection", read "connection_requests"
  if connections[here] == connection and turns[here] == turn then return false end
  connections[here], turns[here] = connection, turn
  return true
end

-- It has ended.
function M.ended()
  local here = address()
  connections[here], turns[here] = nil, nil
end

return M
