-- Normalizes the attributes of a call: texts under names. The twin of rules/attributes.py.
--
--   method, path, host, address, user, plan, server       the well-known ones
--   header.x-plan, argument.q, cookie.sid                 parts of an HTTP request
--   sku, tenant, ...                                      whatever else the caller knows
--
-- `request` makes them from an HTTP request, `from_table` from any table. Texts are bytes, and case is folded in ASCII
-- only.
--
-- Laws: two spellings of one request that a server must treat alike have the same attributes; nothing a client sends is
-- an error; and a repeated value cannot hide the first one.

local ip_networks = require "resty.headgate.rules.ip_networks"
local strings = require "resty.headgate.text.strings"

local M = {}

local function percent_decode(text)
  return (string.gsub(text, "%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end))
end

local function argument(text) return percent_decode((string.gsub(text, "+", " "))) end

local function header(name) return "header." .. string.gsub(string.lower(name), "_", "-") end

-- Returns the name of an attribute as it is compared: header names in lower case, with - for _.
function M.normal_name(name)
  return string.sub(name, 1, 7) == "header." and header(string.sub(name, 8)) or name
end

-- Removes empty segments and dots from a decoded path.
local function normalize_path(text)
  local segments = {}
  for segment in string.gmatch(text, "[^/]+") do
    if segment == ".." then
      segments[#segments] = nil
    elseif segment ~= "." then
      segments[#segments + 1] = segment
    end
  end
  return "/" .. table.concat(segments, "/")
end

-- Returns a host in lower case, without port and trailing dots.
function M.host(text)
  text = string.lower(strings.strip(text))
  if string.sub(text, 1, 1) == "[" then return (strings.cut(text, "]")) .. "]" end
  return strings.strip_end((strings.cut(text, ":")), ". \t")
end

-- Returns the path of a target: decoded once, and normalized.
function M.path(text) return normalize_path(percent_decode(text)) end

-- Returns the path as a server sees it that keeps empty segments: .. removes an empty one, and not the one before it.
function M.unmerged_path(text)
  local segments = {}
  for _, segment in ipairs(strings.split(percent_decode(text), "/")) do
    if segment == ".." then
      segments[#segments] = nil
    elseif segment ~= "." then
      segments[#segments + 1] = segment
    end
  end
  return normalize_path(table.concat(segments, "/"))
end

-- Functions that normalize attributes; they return nil for an invalid value.
M.normal = {
  method = string.upper,
  path = function(text) return text ~= "" and normalize_path(text) or nil end,
  host = M.host,
  address = ip_networks.canonical,
}

-- Returns a value as text; whole numbers with all digits, also beyond what %d can hold.
local function text_of(value)
  if type(value) == "number" and value % 1 == 0 then return string.format("%.0f", value) end
  return type(value) == "string" and value or tostring(value)
end

-- Returns the attributes of a table. Of several spellings of a header the normal one counts, else the first in byte
-- order: a table has no other order.
function M.from_table(raw)
  local values, spelling_of = {}, {}
  for name, value in pairs(raw) do
    local text, normal_name = text_of(value), M.normal_name(name)
    if normal_name == name then
      values[name] = text
      if M.normal[name] then values[name] = M.normal[name](text) end
    elseif raw[normal_name] == nil and (spelling_of[normal_name] == nil or name < spelling_of[normal_name]) then
      values[normal_name], spelling_of[normal_name] = text, name
    end
  end
  return values
end

-- Returns authority (nil if there is none), path and query of a target.
function M.split_target(target)
  local authority
  target = strings.cut(target, "#")
  local scheme_end = select(2, string.find(target, "^%a[%w+.-]*://"))
  if scheme_end then
    local path_at = string.find(target, "[/?]", scheme_end + 1) or #target + 1
    authority, target = string.sub(target, scheme_end + 1, path_at - 1), string.sub(target, path_at)
  end
  return authority, strings.cut(target, "?")
end

local function set_if_absent(values, name, value)
  if rawget(values, name) == nil then values[name] = value end
end

-- Adds the cookies of one header to `values`.
function M.cookies(values, value)
  for _, pair in ipairs(strings.split(value, ";")) do
    local name, cookie_value = strings.cut(pair, "=")
    name = strings.strip(name)
    if cookie_value and name ~= "" then set_if_absent(values, "cookie." .. name, strings.strip(cookie_value)) end
  end
end

-- Adds all headers. Repeated ones are joined at the end: appending each would take the square of their length.
local function put_headers(values, headers)
  local by_name = {}
  local host
  for _, pair in ipairs(headers) do
    local name, value = header(pair[1]), strings.strip(pair[2])
    if name == "header.host" and value ~= "" then host = host or value end
    if name == "header.cookie" then M.cookies(values, value) end
    local header_values = by_name[name] or {}
    by_name[name], header_values[#header_values + 1] = header_values, value
  end
  for name, header_values in pairs(by_name) do values[name] = table.concat(header_values, ", ") end
  return host
end

-- Adds the arguments of a query to `values`.
function M.arguments(values, query)
  for _, pair in ipairs(strings.split(query, "&")) do
    local name, value = strings.cut(pair, "=")
    if name ~= "" then set_if_absent(values, "argument." .. argument(name), argument(value or "")) end
  end
end

-- Returns the attributes of an HTTP request; headers are a list of { name, value }. An absolute URL as target
-- determines the host, whatever the Host field says.
function M.request(method, target, headers, address)
  local authority, path, query = M.split_target(target)
  local values = { method = string.upper(method), path = M.path(path) }
  local host = put_headers(values, headers)
  if query then M.arguments(values, query) end
  authority = string.gsub(authority or "", "^.*@", "")
  if authority ~= "" then host = authority end
  if host then values.host = M.host(host) end
  if address then values.address = ip_networks.canonical(address) end
  return values
end

return M
