-- Reads the attributes of the current request, each when a rule first uses it.
--
--   method, path, host, address            as attributes.lua normalizes them
--   header.x-plan, argument.q, cookie.sid  the same
--   server                                 $server_name
--   user                                   $remote_user, unless the option `attributes` names another variable
--   anything else                          the nginx variable of that name: `plan` is $plan
--
-- Host and path are what nginx routes by, so no spelling bypasses a rule. The host is $host: the host of the request
-- target if that is an absolute URL, else the Host field, else the server's name. Path and arguments are those of the
-- request line ($request_uri), decoded as nginx decodes them: no rewrite and no internal redirect changes whose key is
-- counted. With `merge_slashes off`, /a//../b is /a/b to nginx, and /b otherwise: $uri tells which.
--
-- The address is $remote_addr, which the real_ip module corrects behind trusted proxies. A variable that is named for a
-- well-known attribute is normalized as that attribute is.
--
-- Entries that begin with ? are no attributes, but flags beside them.
--
-- Laws (tests/nginx/request/test_request_attributes.py, test_routing.py): attributes are byte for byte what Python
-- makes of the same request; a rule for a host or a path applies to everything that nginx serves there; nothing a
-- client sends is an error; an absent attribute is empty.

local attributes = require "resty.headgate.rules.attributes"
local ip_networks = require "resty.headgate.rules.ip_networks"
local memoize = require "resty.headgate.memoize"
local strip = require("resty.headgate.text.strings").strip
local clear = require "table.clear"

local M = {}

local rawget, rawset, find, sub = rawget, rawset, string.find, string.sub
local lower, upper, gsub = string.lower, string.upper, string.gsub
local ngx, read = ngx, require("resty.headgate.ffi.variables").read

local VARIABLES = { server = "server_name", user = "remote_user" }

local path_of = memoize(attributes.path)
local unmerged_path_of = memoize(attributes.unmerged_path)
local host_of = memoize(attributes.host)
local address_of = memoize(ip_networks.canonical)

-- Values of the current request, once they are read: locals cost less than table fields. The query is "" once its
-- arguments are in the table.
local method, path, query, host, address
local has_cached_values = false -- whether the table holds anything

-- Returns the path that nginx made of a target with repeated slashes.
local function routed_path(raw_path)
  local merged_path, unmerged_path = path_of(raw_path), unmerged_path_of(raw_path)
  if unmerged_path ~= merged_path and attributes.normal.path(read "uri") == unmerged_path then return unmerged_path end
  return merged_path
end

local function read_target()
  local target = read "request_uri" or "/"
  local raw_path, raw_query = target, nil
  if sub(target, 1, 1) == "/" and not find(target, "#", 1, true) then
    local question_mark = find(target, "?", 1, true)
    if question_mark then raw_path, raw_query = sub(target, 1, question_mark - 1), sub(target, question_mark + 1) end
  else
    local _
    _, raw_path, raw_query = attributes.split_target(target)
  end
  local needs_routing = find(raw_path, "//", 1, true) or find(raw_path, "%", 1, true)
  path, query = needs_routing and routed_path(raw_path) or path_of(raw_path), raw_query or ""
end

local function read_arguments(values)
  if not query then read_target() end
  if query ~= "" then attributes.arguments(values, query) end
  query = ""
end

local function join_values(value)
  if type(value) ~= "table" then return find(value, "\t", 1, true) and strip(value) or value end
  for i = 1, #value do value[i] = strip(value[i]) end
  return table.concat(value, ", ")
end

-- Reads all headers, under their normal names. Headers with an underscore, where nginx lets them through, are appended
-- to those with a dash.
local function read_headers(values)
  local underscored
  for name, value in pairs(ngx.req.get_headers(0)) do
    name = lower(name)
    if find(name, "_", 1, true) then
      underscored = underscored or {}
      underscored[#underscored + 1] = { "header." .. gsub(name, "_", "-"), join_values(value) }
    else
      rawset(values, "header." .. name, join_values(value))
    end
  end
  for _, pair in ipairs(underscored or {}) do
    local existing = rawget(values, pair[1])
    rawset(values, pair[1], existing and existing .. ", " .. pair[2] or pair[2])
  end
  rawset(values, "?headers", true)
end

local function header(values, name)
  if not rawget(values, "?headers") then read_headers(values) end
  return rawget(values, name)
end

local function cookie(values, name)
  if not rawget(values, "?cookies") then
    rawset(values, "?cookies", true)
    local value = ngx.req.get_headers(0).cookie
    for _, cookies in ipairs(type(value) == "table" and value or { value }) do attributes.cookies(values, cookies) end
  end
  return rawget(values, name)
end

local function argument(values, name)
  if query ~= "" then read_arguments(values) end
  return rawget(values, name)
end

local STANDARD_READERS = {
  method = function()
    method = method or upper(read "request_method")
    return method
  end,
  path = function()
    if not path then read_target() end
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

local PREFIXES = { ["header."] = header, ["cookie."] = cookie, ["argument."] = argument }

-- Functions that read all other attributes: a part of the request, or a variable. Their values go into the table.
local readers = {}

local function variable_reader(name)
  local variable, normalize = VARIABLES[name] or name, attributes.normal[name]
  if not normalize then return function() return read(variable) end end
  normalize = memoize(normalize)
  return function()
    local value = read(variable)
    return value and normalize(value)
  end
end

local function reader_of(name)
  local read_value = PREFIXES[string.match(name, "^%l+%.") or ""] or variable_reader(name)
  return function(values)
    has_cached_values = true
    local value = read_value(values, name) or ""
    rawset(values, name, value)
    return value
  end
end

local LAZY = {
  __index = function(values, name)
    local read_value = readers[name]
    if not read_value then
      read_value = STANDARD_READERS[name] or reader_of(name)
      readers[name] = read_value
    end
    return read_value(values)
  end,
}

local values = setmetatable({}, LAZY)

-- Returns the attributes of the current request, in one table for all requests: valid until the caller yields, or calls
-- this again.
function M.request()
  method, path, query, host, address = nil, nil, nil, nil, nil
  if has_cached_values then
    clear(values)
    has_cached_values = false
  end
  return values
end

-- Sets which nginx variables hold attributes: { user = "$cookie_uid" }. All others stay as they are.
function M.set_variables(variables)
  for name, variable in pairs(variables) do
    local variable_name = type(variable) == "string" and string.match(variable, "^%$([%w_]+)$")
    if not variable_name then
      error('headgate: the attribute "' .. tostring(name) .. '" is an nginx variable, such as "$cookie_uid", not '
        .. tostring(variable) .. ".", 0)
    end
    VARIABLES[name], readers[name], STANDARD_READERS[name] = variable_name, nil, nil
  end
end

return M
