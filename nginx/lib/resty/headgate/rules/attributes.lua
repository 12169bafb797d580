-- Normalizes the attributes of a call: texts under names. The twin of rules/attributes.py.
--
--   method, path, host, address, user, plan, server       the well-known ones
--   header.x-plan, argument.q, cookie.sid                 parts of an HTTP request
--   sku, tenant, ...                                      whatever else the caller knows
--
-- Texts are bytes, and case is folded in ASCII only. request_attributes.lua reads them from nginx.
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

-- Returns the name of an attribute as it is compared: header names in lower case, with - for _.
function M.normal_name(name)
  return string.sub(name, 1, 7) == "header." and string.gsub(string.lower(name), "_", "-") or name
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

-- Adds the arguments of a query to `values`.
function M.arguments(values, query)
  for _, pair in ipairs(strings.split(query, "&")) do
    local name, value = strings.cut(pair, "=")
    if name ~= "" then set_if_absent(values, "argument." .. argument(name), argument(value or "")) end
  end
end

return M
