-- An engine's URL, as Python reads it too (engines/url.py, engines/url_schemes.py, engines/redis/topology.py). Pure.
--
--   redis://user:password@host:6379/0        rediss:// with TLS; valkey://, valkeys:// are the same
--   unix://user:password@/path/to.sock?db=0  redis+unix://, valkey+unix:// too
--   redis+cluster://user:password@host:6379,host:6380
--   redis+sentinel://user:password@host:26379,host:26379/name-of-the-master/0
--
-- Behind it come options (options.lua).
--
-- Laws (tests/nginx/engines/redis/test_url.py): what is read is what Python reads; what cannot be read is a sentence,
-- which never holds a part of the login.

local address = require "resty.headgate.engines.redis.server_address"
local options = require "resty.headgate.engines.redis.url_options"
local split = require "resty.headgate.text.strings"

local decoded = options.decoded
local find, gsub, lower, match = string.find, string.gsub, string.lower, string.match

local M = {}

local SCHEMES = {
  redis = "redis", rediss = "rediss", valkey = "redis", valkeys = "rediss",
  unix = "unix", ["redis+unix"] = "unix", ["valkey+unix"] = "unix",
}
local FORMS = {
  one = "user:password@host:6379/0",
  unix = "user:password@/path/to.sock?db=0",
  cluster = "user:password@host:6379,host:6380",
  sentinel = "user:password@host:26379,host:26379/name-of-the-master/0",
}

local function filled(text) return text ~= nil and text ~= "" and text or nil end

local function unreadable(scheme, kind)
  return "The engine's URL " .. scheme .. "://… cannot be read. Write " .. scheme .. "://" .. FORMS[kind]
    .. ", with / and other special characters of the password as %2F and so on."
end

-- Refuses a text that is not a URL, and leaves out of the sentence what may be a login.
local function not_a_url(text)
  local shown = match(match(text, "([^@]*)$"), "^[^?]*")
  local form = find(shown, "^[%w._-]+:%d+$") or find(shown, "^[%w._-]+:%d+/%d+$")
  return '"' .. shown:sub(1, 80) .. '" is not an engine URL. Write redis://' .. (form and shown or "host:6379/0") .. "."
end

local function scheme_of(url)
  local scheme, rest = match(url, "^([%w+.-]*)://(.*)$")
  if not scheme then return nil, not_a_url(url) end
  if scheme == "memory" then
    return nil, 'memory:// is no server. Write init{ engine = "shared" }: then all is decided on the shared dict.'
  end
  local base, kind = match(scheme, "^(%w+)%+(%w+)$")
  if kind == "cluster" or kind == "sentinel" then
    if SCHEMES[base] and base ~= "unix" then return scheme, rest, SCHEMES[base], kind end
  elseif SCHEMES[scheme] then
    return scheme, rest, SCHEMES[scheme], SCHEMES[scheme] == "unix" and "unix" or "one"
  end
  return nil, scheme .. "://… is not an engine URL. Write redis://host:6379/0. Known: redis, rediss, valkey, valkeys,"
    .. " unix, and with +cluster or +sentinel all of them but unix."
end

-- A sentence about one part of a URL, which it names and does not show.
local function refusal(said, before, after, more)
  return before .. said.scheme .. "://…" .. after .. " Write " .. said.scheme .. "://" .. FORMS[said.kind]
    .. (more or "") .. "."
end

local function host_of(said, text, port)
  local host, given = match(text, "^%[([%x:.%%]+)%](.*)$")
  if not host then host, given = match(text, "^([^:%[%]]*)(.*)$") end
  local digits = match(given, "^:([^:%[%]]*)$")
  if given ~= "" and not digits then
    local ipv6 = ", an IPv6 address in brackets: [::1]"
    return nil, refusal(said, "The host in the engine's URL ", " cannot be read.", ipv6)
  end
  if host == "" and said.kind ~= "one" then return nil, refusal(said, "The engine's URL ", " lacks a host.") end
  if filled(digits) then
    port = match(digits, "^0*(%d%d?%d?%d?%d?)$") and tonumber(digits) or 0
    if port < 1 or port > 65535 then
      return nil, refusal(said, "The port in the engine's URL ", " is not a number from 1 to 65535.")
    end
  end
  return { host = lower(host), port = port }
end

local function hosts_of(said, port)
  local found = {}
  for i, one in ipairs(split.split(said.places, ",")) do
    local place, why = host_of(said, one, port)
    if not place then return nil, why end
    found[i] = place
  end
  return found
end

local function tls_of(chosen)
  return {
    verify = chosen.ssl_cert_reqs ~= "none", named = chosen.ssl_check_hostname ~= false,
    certificate = chosen.ssl_certfile, key = chosen.ssl_keyfile,
  }
end

local function login_of(text)
  local user, password = split.cut(text or "", ":")
  if not filled(password) then return nil, nil end
  return filled(decoded(user)), decoded(password)
end

local function db_of(text)
  if not filled(text) then return 0 end
  return match(text, "^%d+$") and tonumber(text) or nil
end

local function unix(said)
  if not filled(said.path) or said.places ~= "" then
    return nil, refusal(said, "The engine's URL ", " needs the path of a socket, which begins with /.")
  end
  return { address = address.new {
    path = decoded(said.path), user = said.user, password = said.password, db = said.options.db or 0,
  } }
end

local function one(said)
  if find(said.places, ",", 1, true) then
    local scheme = said.scheme
    return nil, scheme .. ":// is one server, and this URL has several hosts. Write " .. scheme .. "+cluster://"
      .. FORMS.cluster .. " or " .. scheme .. "+sentinel://" .. FORMS.sentinel .. "."
  end
  local place, why = host_of(said, said.places, 6379)
  if not place then return nil, why end
  local in_path = db_of(gsub(said.path, "^/+", ""):gsub("/+$", ""))
  if not in_path then
    return nil, refusal(said, "The path of the engine's URL ", " is not the number of a database.")
  end
  return { address = address.new {
    host = filled(place.host) or "localhost", port = place.port, user = said.user, password = said.password,
    db = said.options.db or in_path, tls = said.tls,
  } }
end

local function cluster(said)
  local hosts, why = hosts_of(said, 6379)
  if not hosts then return nil, why end
  if (said.options.db or db_of(match(said.path, "^/*(.-)/*$"))) ~= 0 then
    return nil, "A cluster has no database but 0: write " .. said.scheme .. "://host:6379 without a number."
  end
  for i, place in ipairs(hosts) do
    place.user, place.password, place.tls = said.user, said.password, said.tls
    hosts[i] = address.new(place)
  end
  return { seeds = hosts }
end

local function sentinel(said)
  local hosts, why = hosts_of(said, 26379)
  if not hosts then return nil, why end
  local name, db = split.cut(match(said.path, "^/*(.-)/*$"), "/")
  db = db_of(db)
  if name == "" or not db then
    return nil, "Which master? Write " .. said.scheme .. "://" .. FORMS.sentinel .. "."
  end
  for i, place in ipairs(hosts) do
    place.user, place.password = filled(said.options.sentinel_username), filled(said.options.sentinel_password)
    place.tls = said.tls
    hosts[i] = address.new(place)
  end
  local master = address.new {
    host = hosts[1].host, port = hosts[1].port, user = said.user, password = said.password, tls = said.tls,
    db = said.options.db or db,
  }
  return { watchers = hosts, name = decoded(name), master = master }
end

local READ = { one = one, unix = unix, cluster = cluster, sentinel = sentinel }

-- All that a URL says: kind ("one", "cluster", "sentinel") with its addresses, and its options deadline, fallback,
-- denial_cache, nodes, and patience, the deadline chosen or not. Else nil and a sentence.
function M.read(url)
  local scheme, rest, plain, kind = scheme_of(url)
  if not scheme then return nil, rest end
  local authority, behind = match(rest, "^([^/?#]*)(.*)$")
  local path, query = split.cut(behind, "?")
  -- A password whose special characters are not escaped: no part of it is named.
  local fragment = match(behind, "#(.*)$")
  if find(fragment or query or "", "@", 1, true) or find(query or "", "@", 1, true) then
    return nil, unreadable(scheme, kind)
  end
  if fragment then
    return nil, "The engine's URL " .. scheme .. "://… has a # and something behind it. Leave it out, or write # in a"
      .. " password as %23: " .. scheme .. "://" .. FORMS[kind] .. "."
  end
  local chosen, why = options.read(query, plain, kind)
  if not chosen then return nil, why end
  if find(path, "@", 1, true) then return nil, unreadable(scheme, kind) end
  local said = { scheme = scheme, kind = kind, plain = plain, path = path, options = chosen }
  if plain == "rediss" then said.tls = tls_of(chosen) end
  local login, places = match(authority, "^(.*)@([^@]*)$")
  said.places = places or authority
  said.user, said.password = login_of(login)
  local found
  found, why = READ[kind](said)
  if not found then return nil, why end
  found.kind, found.deadline, found.fallback = kind == "unix" and "one" or kind, chosen.deadline, chosen.fallback
  found.nodes, found.patience, found.denial_cache = chosen.nodes, chosen.patience, chosen.denial_cache
  return found
end

return M
