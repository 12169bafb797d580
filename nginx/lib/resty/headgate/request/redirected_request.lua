-- Recognizes a request that was decided before an internal redirect.
--
-- An internal redirect (error_page, index, try_files, ...) runs the access phase again for the same request, and nginx
-- drops ngx.ctx. $headgate_status survives, if the configuration has it. So does the request's address in memory, until
-- its log phase; requests at one address are distinguished by their connection and their number on it. So nothing
-- depends on a log phase: without ours, a reused address means nothing to a new request.
--
-- Laws (tests/nginx/request/test_hostile_requests.py): a request is decided once, however often it is redirected and
-- access() is called; two requests on one connection are two.

local ffi = require "ffi"
local get_request = require("resty.core.base").get_request
local variables = require "resty.headgate.ffi.variables"

local M = {}

local ngx, read, status_of = ngx, variables.read, variables.status
local cast, tonumber = ffi.cast, tonumber
local AS_NUMBER = ffi.typeof "uintptr_t"

local connections, request_numbers = {}, {}

-- Returns a number that no other request of this worker has while this one lives.
local function address()
  local number = tonumber(cast(AS_NUMBER, get_request()))
  return number
end
M.address = address

-- Returns whether this request is still to be decided; from now on it is not. A sub-request belongs to its request.
function M.is_new()
  if ngx.is_subrequest then return false end
  local status = status_of()
  if status then return status == "" end
  local at, connection, request_number = address(), read "connection", read "connection_requests"
  if connections[at] == connection and request_numbers[at] == request_number then return false end
  connections[at], request_numbers[at] = connection, request_number
  return true
end

-- Forgets a request that has ended.
function M.request_ended()
  local at = address()
  connections[at], request_numbers[at] = nil, nil
end

return M
