-- Makes the attributes of a call outside of nginx, from a request or a table, by the parts that the gateway uses.

local attributes = require "resty.headgate.rules.attributes"
local ip_networks = require "resty.headgate.rules.ip_networks"
local strings = require "resty.headgate.text.strings"

local M = {}

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
    local text, normal_name = text_of(value), attributes.normal_name(name)
    if normal_name == name then
      values[name] = text
      if attributes.normal[name] then values[name] = attributes.normal[name](text) end
    elseif raw[normal_name] == nil and (spelling_of[normal_name] == nil or name < spelling_of[normal_name]) then
      values[normal_name], spelling_of[normal_name] = text, name
    end
  end
  return values
end

-- Adds all headers. Repeated ones are joined at the end: appending each would take the square of their length.
local function put_headers(values, headers)
  local by_name = {}
  local host
  for _, pair in ipairs(headers) do
    local name, value = attributes.normal_name("header." .. pair[1]), strings.strip(pair[2])
    if name == "header.host" and value ~= "" then host = host or value end
    if name == "header.cookie" then attributes.cookies(values, value) end
    local header_values = by_name[name] or {}
    by_name[name], header_values[#header_values + 1] = header_values, value
  end
  for name, header_values in pairs(by_name) do values[name] = table.concat(header_values, ", ") end
  return host
end

-- Returns the attributes of an HTTP request; headers are a list of { name, value }. An absolute URL as target
-- determines the host, whatever the Host field says.
function M.request(method, target, headers, address)
  local authority, path, query = attributes.split_target(target)
  local values = { method = string.upper(method), path = attributes.path(path) }
  local host = put_headers(values, headers)
  if query then attributes.arguments(values, query) end
  authority = string.gsub(authority or "", "^.*@", "")
  if authority ~= "" then host = authority end
  if host then values.host = attributes.host(host) end
  if address then values.address = ip_networks.canonical(address) end
  return values
end

return M
