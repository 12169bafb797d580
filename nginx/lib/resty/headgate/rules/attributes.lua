-- Attributes: what is known of a call, as texts under names, in one normal form. The twin of rules/attributes.py.
--
--   method, path, host, address, user, plan, server       the well-known ones
--   header.x-plan, argument.q, cookie.sid                 parts of an HTTP request
--   sku, tenant, ...                                      whatever else the caller knows
--
-- `request` makes them from what came over the wire, `given` from a table that anybody made. Texts are bytes, and
-- case is folded in ASCII only.
--
-- Laws: two spellings of one request that a server must treat alike have the same attributes; nothing a client sends
-- is an error; and what was sent twice cannot hide what was sent first.

local network = require "resty.headgate.rules.ip_networks"
local split = require "resty.headgate.text.strings"

local M = {}

local function decoded(text)
  return (string.gsub(text, "%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end))
end

local function argument(text) return decoded((string.gsub(text, "+", " "))) end

local function header(name) return "header." .. string.gsub(string.lower(name), "_", "-") end

-- The name of an attribute as it is compared: header names in small letters, with - for _.
function M.folded(name)
  return string.sub(name, 1, 7) == "header." and header(string.sub(name, 8)) or name
end

-- A decoded path without empty segments and dots, however it was given.
local function path_of(text)
  local kept = {}
  for segment in string.gmatch(text, "[^/]+") do
    if segment == ".." then
      kept[#kept] = nil
    elseif segment ~= "." then
      kept[#kept + 1] = segment
    end
  end
  return "/" .. table.concat(kept, "/")
end

-- A host in small letters, without port and closing dots.
function M.host(text)
  text = string.lower(split.strip(text))
  if string.sub(text, 1, 1) == "[" then return (split.cut(text, "]")) .. "]" end
  return split.strip_end((split.cut(text, ":")), ". \t")
end

-- The path of a target: decoded once, and resolved.
function M.path(text) return path_of(decoded(text)) end

-- The same by a server to which an empty segment is one: .. takes it away, and not the one before it.
function M.unmerged_path(text)
  local kept = {}
  for _, segment in ipairs(split.split(decoded(text), "/")) do
    if segment == ".." then
      kept[#kept] = nil
    elseif segment ~= "." then
      kept[#kept + 1] = segment
    end
  end
  return path_of(table.concat(kept, "/"))
end

-- The normal forms of the attributes that have one; nil of what cannot be one.
M.normal = {
  method = string.upper,
  path = function(text) return text ~= "" and path_of(text) or nil end,
  host = M.host,
  address = network.canonical,
}

-- Whole numbers as they are, beyond what %d can hold too.
local function text_of(value)
  if type(value) == "number" and value % 1 == 0 then return string.format("%.0f", value) end
  return type(value) == "string" and value or tostring(value)
end

-- The attributes that anybody made. Of several spellings of a header the normal one counts, else the first in the
-- order of bytes: a table has no other.
function M.given(known)
  local found, spelled = {}, {}
  for name, value in pairs(known) do
    local text, plain = text_of(value), M.folded(name)
    if plain == name then
      found[name] = text
      if M.normal[name] then found[name] = M.normal[name](text) end
    elseif known[plain] == nil and (spelled[plain] == nil or name < spelled[plain]) then
      found[plain], spelled[plain] = text, name
    end
  end
  return found
end

-- Authority (nil if there is none), path and query of a target.
function M.parts(target)
  local authority
  target = split.cut(target, "#")
  local scheme_end = select(2, string.find(target, "^%a[%w+.-]*://"))
  if scheme_end then
    local path_at = string.find(target, "[/?]", scheme_end + 1) or #target + 1
    authority, target = string.sub(target, scheme_end + 1, path_at - 1), string.sub(target, path_at)
  end
  return authority, split.cut(target, "?")
end

local function first(found, name, value)
  if rawget(found, name) == nil then found[name] = value end
end

-- The cookies of one header, laid into `found`.
function M.cookies(found, value)
  for _, pair in ipairs(split.split(value, ";")) do
    local name, said = split.cut(pair, "=")
    name = split.strip(name)
    if said and name ~= "" then first(found, "cookie." .. name, split.strip(said)) end
  end
end

-- Repeated headers are joined at the end: each joined to those before it would take the square of their length.
local function put_headers(found, headers)
  local rows = {}
  local host
  for _, pair in ipairs(headers) do
    local name, value = header(pair[1]), split.strip(pair[2])
    if name == "header.host" and value ~= "" then host = host or value end
    if name == "header.cookie" then M.cookies(found, value) end
    local row = rows[name] or {}
    rows[name], row[#row + 1] = row, value
  end
  for name, row in pairs(rows) do found[name] = table.concat(row, ", ") end
  return host
end

-- The arguments of a query, laid into `found`.
function M.arguments(found, query)
  for _, pair in ipairs(split.split(query, "&")) do
    local name, value = split.cut(pair, "=")
    if name ~= "" then first(found, "argument." .. argument(name), argument(value or "")) end
  end
end

-- The attributes of an HTTP request; headers are a list of { name, value }. A target that is a whole URL names the
-- host, whatever the Host field says.
function M.request(method, target, headers, address)
  local authority, path, query = M.parts(target)
  local found = { method = string.upper(method), path = M.path(path) }
  local host = put_headers(found, headers)
  if query then M.arguments(found, query) end
  authority = string.gsub(authority or "", "^.*@", "")
  if authority ~= "" then host = authority end
  if host then found.host = M.host(host) end
  if address then found.address = network.canonical(address) end
  return found
end

return M
