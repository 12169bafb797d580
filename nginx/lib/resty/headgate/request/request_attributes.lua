-- The attributes of the request that nginx is serving, each made when a rule first asks for it.
--
--   method, path, host, address            as attributes.lua makes them of what came over the wire
--   header.x-plan, argument.q, cookie.sid  the same
--   server                                 $server_name
--   user                                   $remote_user, unless the gateway was told another variable
--   anything else                          the nginx variable of that name: `plan` is $plan
--
-- Host and path are what nginx routes by, so no spelling is a way around a rule. The host is $host: the target's where
-- the target is a whole URL, else the Host field's, else the server's own name. The path and its arguments are those of
-- the line that the client sent ($request_uri), read as nginx reads them: no rewrite and no internal redirect changes
-- whose key is counted. With `merge_slashes off`, /a//../b is /a/b to nginx, and /b otherwise: $uri tells which.
--
-- The address is $remote_addr, which the real_ip module sets right behind proxies that nginx was told to trust. A
-- variable that is named for a well-known attribute is made normal as that attribute is.
--
-- What begins with ? is no attribute: it stands beside them.
--
-- Laws (tests/nginx/request/test_request_attributes.py, test_routing.py): byte for byte what Python makes of the same
-- request; a rule for a host or a path meets all that nginx serves there; nothing a client sends is an error; what is
-- absent is empty.

local attributes = require "resty.headgate.rules.attributes"
local network = require "resty.headgate.rules.ip_networks"
local remembering = require "resty.headgate.memoize"
local strip = require("resty.headgate.text.strings").strip
local clear = require "table.clear"

local M = {}

local rawget, rawset, find, sub = rawget, rawset, string.find, string.sub
local lower, upper, gsub = string.lower, string.upper, string.gsub
local ngx, read = ngx, require("resty.headgate.ffi.variables").read

local VARIABLES = { server = "server_name", user = "remote_user" }

local path_of = remembering(attributes.path)
local unmerged_path_of = remembering(attributes.unmerged_path)
local host_of = remembering(attributes.host)
local address_of = remembering(network.canonical)

-- Of the current request, once somebody has asked: these cost less than places in a table. The query is "" when its
-- arguments are among the others.
local method, path, query, host, address
local others = false -- whether anything else is known of it, in the table

-- The path that nginx made of a target in which slashes follow each other.
local function routed_path(plain)
  local merged, unmerged = path_of(plain), unmerged_path_of(plain)
  if unmerged ~= merged and attributes.normal.path(read "uri") == unmerged then return unmerged end
  return merged
end

local function put_target()
  local target = read "request_uri" or "/"
  local plain, rest = target, nil
  if sub(target, 1, 1) == "/" and not find(target, "#", 1, true) then
    local mark = find(target, "?", 1, true)
    if mark then plain, rest = sub(target, 1, mark - 1), sub(target, mark + 1) end
  else
    local _
    _, plain, rest = attributes.parts(target)
  end
  local spelled = find(plain, "//", 1, true) or find(plain, "%", 1, true)
  path, query = spelled and routed_path(plain) or path_of(plain), rest or ""
end

local function put_arguments(seen)
  if not query then put_target() end
  if query ~= "" then attributes.arguments(seen, query) end
  query = ""
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
  if query ~= "" then put_arguments(seen) end
  return rawget(seen, name)
end

local MADE = {
  method = function()
    method = method or upper(read "request_method")
    return method
  end,
  path = function()
    if not path then put_target() end
    return path
  end,
  host = function()
    host = host or host_of(read "host" or "")
    return host
  end,
  address = function()
    address = address or address_of(read "remote_addr") or ""
    return address
  end,
}

local PARTS = { ["header."] = header, ["cookie."] = cookie, ["argument."] = argument }

-- How an attribute is made that is not one of the above: a part of the request, or a variable. It is put in the table.
local made = {}

local function variable_of(name)
  local variable, normal = VARIABLES[name] or name, attributes.normal[name]
  if not normal then return function() return read(variable) end end
  normal = remembering(normal)
  return function()
    local value = read(variable)
    return value and normal(value)
  end
end

local function maker(name)
  local make = PARTS[string.match(name, "^%l+%.") or ""] or variable_of(name)
  return function(seen)
    others = true
    local value = make(seen, name) or ""
    rawset(seen, name, value)
    return value
  end
end

local ON_DEMAND = {
  __index = function(seen, name)
    local make = made[name]
    if not make then
      make = MADE[name] or maker(name)
      made[name] = make
    end
    return make(seen)
  end,
}

local seen = setmetatable({}, ON_DEMAND)

-- The attributes of the current request: until somebody waits, or asks again. It is one table for all.
function M.request()
  method, path, query, host, address = nil, nil, nil, nil, nil
  if others then
    clear(seen)
    others = false
  end
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
