-- The attributes of the request that nginx is serving, each made when a rule first asks for it.
--
--   method, path, host, address            as attributes.lua makes them of what came over the wire
--   header.x-plan, argument.q, cookie.sid  the same
--   server                                 $server_name
--   user                                   $remote_user, unless the gateway was told another variable
--   anything else                          the nginx variable of that name: `plan` is $plan
--
-- The path and its arguments are those of the line that the client sent ($request_uri): no rewrite and no internal
-- redirect changes whose key is counted. The address is $remote_addr, which the real_ip module sets right behind
-- proxies that nginx was told to trust.
--
-- What begins with ? is no attribute: it stands beside them.
--
-- Laws (tests/nginx/test_seen.py): byte for byte what Python makes of the same request; nothing a client sends is an
-- error; what is absent is empty.

local attributes = require "resty.headgate.attributes"
local network = require "resty.headgate.network"
local remembering = require "resty.headgate.remembering"
local strip = require("resty.headgate.split").strip
local clear, new_table = require "table.clear", require "table.new"

local M = {}

local rawget, rawset, find, sub, lower, gsub = rawget, rawset, string.find, string.sub, string.lower, string.gsub
local ngx, read = ngx, require("resty.headgate.variables").read

local ROOM = 8 -- attributes that most requests need at most: a table that need not grow is quickly made

local VARIABLES = { server = "server_name", user = "remote_user" }

local path_of = remembering(attributes.path)
local host_of = remembering(attributes.host)
local address_of = remembering(network.canonical)

local function put_target(seen)
  local target = read "request_uri" or "/"
  local path, query = target, nil
  if sub(target, 1, 1) == "/" and not find(target, "#", 1, true) then
    local mark = find(target, "?", 1, true)
    if mark then path, query = sub(target, 1, mark - 1), sub(target, mark + 1) end
  else
    local _
    _, path, query = attributes.parts(target)
  end
  rawset(seen, "path", path_of(path))
  rawset(seen, "?", query or "")
end

local function put_arguments(seen)
  if not rawget(seen, "path") then put_target(seen) end
  local query = rawget(seen, "?")
  if query ~= "" then attributes.arguments(seen, query) end
  rawset(seen, "?", "")
end

local function joined(value)
  if type(value) ~= "table" then return find(value, "\t", 1, true) and strip(value) or value end
  for i = 1, #value do value[i] = strip(value[i]) end
  return table.concat(value, ", ")
end

-- All headers, under their normal names. Those that nginx was told to let through with an underscore follow those
-- with a dash.
local function put_headers(seen)
  local late
  for name, value in pairs(ngx.req.get_headers(0)) do
    name = lower(name)
    if find(name, "_", 1, true) then
      late = late or {}
      late[#late + 1] = { "header." .. gsub(name, "_", "-"), joined(value) }
    else
      rawset(seen, "header." .. name, joined(value))
    end
  end
  for _, pair in ipairs(late or {}) do
    local before = rawget(seen, pair[1])
    rawset(seen, pair[1], before and before .. ", " .. pair[2] or pair[2])
  end
  rawset(seen, "?headers", true)
end

local function header(seen, name)
  if not rawget(seen, "?headers") then put_headers(seen) end
  return rawget(seen, name)
end

local function cookie(seen, name)
  if not rawget(seen, "?cookies") then
    rawset(seen, "?cookies", true)
    local value = ngx.req.get_headers(0).cookie
    for _, line in ipairs(type(value) == "table" and value or { value }) do attributes.cookies(seen, line) end
  end
  return rawget(seen, name)
end

local function argument(seen, name)
  if rawget(seen, "?") ~= "" then put_arguments(seen) end
  return rawget(seen, name)
end

-- Of a request without a Host: what its line names, but not the name of the server that got it.
local function named_in_line()
  if find(read "request" or "", "^%S+ %a[%w+.-]*://") then return read "host" end
end

local MADE = {
  method = function() return string.upper(read "request_method") end,
  path = function(seen)
    put_target(seen)
    return rawget(seen, "path")
  end,
  host = function()
    local said = read "http_host"
    if not said or said == "" then said = named_in_line() end
    return said and host_of(said)
  end,
  address = function() return address_of(read "remote_addr") end,
}

local PARTS = { ["header."] = header, ["cookie."] = cookie, ["argument."] = argument }

-- How an attribute is made that is not one of the above: a part of the request, or a variable.
local made = {}

local function maker(name)
  local part = PARTS[string.match(name, "^%l+%.") or ""]
  if part then return part end
  local variable = VARIABLES[name] or name
  return function() return read(variable) end
end

local ON_DEMAND = {
  __index = function(seen, name)
    local make = made[name]
    if not make then
      make = MADE[name] or maker(name)
      made[name] = make
    end
    local value = make(seen, name) or ""
    rawset(seen, name, value)
    return value
  end,
}

local seen = setmetatable(new_table(0, ROOM), ON_DEMAND)

-- The attributes of the current request: until somebody waits, or asks again. It is one table for all.
function M.request()
  clear(seen)
  return seen
end

-- Which nginx variables stand for attributes: { user = "$cookie_uid" }. Those that are not named stay as they are.
function M.named(variables)
  for name, variable in pairs(variables) do
    local plain = type(variable) == "string" and string.match(variable, "^%$([%w_]+)$")
    if not plain then
      error('headgate: the attribute "' .. tostring(name) .. '" is an nginx variable, such as "$cookie_uid", not '
        .. tostring(variable) .. ".", 0)
    end
    VARIABLES[name], made[name], MADE[name] = plain, nil, nil
  end
end

return M
