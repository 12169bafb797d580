-- The address of a server, and how to log in: host and port or a socket's path, TLS, a login, a database. Pure.
--
-- An Address is created once and used for every connection, so it contains everything that connecting needs: `target`,
-- `port` and `options` are the arguments of connect(), `greeting` is sent before the first request.
--
-- Laws (tests/nginx/engines/redis/test_url.py): two addresses share the connections of a pool only if place, user,
-- password, database and TLS are the same; no text of an address shows the password.

local resp = require "resty.headgate.engines.redis.resp"
local sha256 = require "resty.headgate.text.sha256"

local M = {}

-- nginx reads no hosts file, and this name is well known.
local LOCAL_HOSTS = { localhost = "127.0.0.1" }

local function greeting(settings)
  local packed, count = "", 0
  if settings.password then
    local args = settings.user and { "AUTH", settings.user, settings.password } or { "AUTH", settings.password }
    packed, count = resp.command(args), 1
  end
  if settings.db ~= 0 then packed, count = packed .. resp.command { "SELECT", settings.db }, count + 1 end
  return count > 0 and packed or nil, count
end

local function pool_name(settings, text)
  local tls = settings.tls
  local tls_text = tls and table.concat({ "tls", tls.verify and "verified" or "", tls.check_hostname and "named" or "",
    tls.certificate or "", tls.key or "" }, ";") or ""
  local login = settings.password and sha256((settings.user or "") .. "\0" .. settings.password) or ""
  return table.concat({ "headgate", text, settings.db, tls_text, login }, "|")
end

-- Returns an Address. `settings`: host, port or path; user, password (nil: no login), db, tls ({ verify,
-- check_hostname, certificate, key } or nil).
function M.new(settings)
  local address = {
    host = settings.host, path = settings.path, tls = settings.tls, user = settings.user,
    password = settings.password, db = settings.db or 0,
  }
  if settings.path then
    address.target, address.text = "unix:" .. settings.path, settings.path
  else
    local host = LOCAL_HOSTS[settings.host] or settings.host
    address.target = string.find(host, ":", 1, true) and "[" .. host .. "]" or host
    address.port, address.text = settings.port, settings.host .. ":" .. settings.port
  end
  address.greeting, address.replies = greeting(address)
  address.options = { pool = pool_name(address, address.text) }
  return address
end

-- Returns a URL of the address, without its login; `kind` is "" or "+cluster".
function M.url(address, kind)
  local host = address.host or "localhost"
  if string.find(host, ":", 1, true) then host = "[" .. host .. "]" end
  return "redis" .. (address.tls and "s" or "") .. kind .. "://" .. host .. ":" .. (address.port or 6379)
end

-- Returns the address of another server with the same login.
function M.at(address, host, port)
  return M.new {
    host = host, port = port, tls = address.tls, user = address.user, password = address.password, db = address.db,
  }
end

return M
