-- Where a server is, and how one is let in: host and port or a socket's path, TLS, a login, a database. Pure.
--
-- An Address is made once and used for every connection, so all that connecting needs is in it already: `to`, `port`
-- and `options` are the words of connect(), `greeting` is what is said before the first question.
--
-- Laws (tests/nginx/engines/redis/test_url.py): two addresses share the connections of a pool only if place, user,
-- password, database and TLS are the same; no text of an address shows the password.

local resp = require "resty.headgate.engines.redis.resp"
local sha256 = require "resty.headgate.text.sha256"

local M = {}

-- nginx asks no hosts file, and everybody knows this one.
local KNOWN = { localhost = "127.0.0.1" }

local function greeting(said)
  local packed, count = "", 0
  if said.password then
    local words = said.user and { "AUTH", said.user, said.password } or { "AUTH", said.password }
    packed, count = resp.command(words), 1
  end
  if said.db ~= 0 then packed, count = packed .. resp.command { "SELECT", said.db }, count + 1 end
  return count > 0 and packed or nil, count
end

local function pool(said, text)
  local tls = said.tls
  local secure = tls and table.concat({ "tls", tls.verify and "verified" or "", tls.named and "named" or "",
    tls.certificate or "", tls.key or "" }, ";") or ""
  local login = said.password and sha256((said.user or "") .. "\0" .. said.password) or ""
  return table.concat({ "headgate", text, said.db, secure, login }, "|")
end

-- host, port or path; user, password (nil: no login), db, tls ({ verify, named, certificate, key } or nil).
function M.new(said)
  local found = {
    host = said.host, path = said.path, tls = said.tls, user = said.user, password = said.password, db = said.db or 0,
  }
  if said.path then
    found.to, found.text = "unix:" .. said.path, said.path
  else
    local host = KNOWN[said.host] or said.host
    found.to = string.find(host, ":", 1, true) and "[" .. host .. "]" or host
    found.port, found.text = said.port, said.host .. ":" .. said.port
  end
  found.greeting, found.replies = greeting(found)
  found.options = { pool = pool(found, found.text) }
  return found
end

-- A URL that leads there, without its login; `kind` is "" or "+cluster".
function M.url(address, kind)
  local host = address.host or "localhost"
  if string.find(host, ":", 1, true) then host = "[" .. host .. "]" end
  return "redis" .. (address.tls and "s" or "") .. kind .. "://" .. host .. ":" .. (address.port or 6379)
end

-- Another server that lets us in the same way.
function M.at(address, host, port)
  return M.new {
    host = host, port = port, tls = address.tls, user = address.user, password = address.password, db = address.db,
  }
end

return M
