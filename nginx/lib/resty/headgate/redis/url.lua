-- An engine's URL, as Python reads it too (engine/url.py, engine/options.py, engine/redis/topology.py). Pure.
--
--   redis://user:password@host:6379/0        rediss:// with TLS; valkey://, valkeys:// are the same
--   unix://user:password@/path/to.sock?db=0  redis+unix://, valkey+unix:// too
--   redis+cluster://user:password@host:6379,host:6380
--   redis+sentinel://user:password@host:26379,host:26379/name-of-the-master/0?sentinel_username=..&sentinel_password=..
--
--   ?deadline=50ms     how long a question may take: 1s, and 50ms where a fallback is chosen
--   ?fallback=local    what is done when there is no answer: allow, deny, or local
--   ?nodes=4           how many share the limits when the engine is gone, if that is known beforehand
--   ?ssl_cert_reqs=none, ?ssl_check_hostname=false, ?ssl_certfile=..&ssl_keyfile=..    of rediss://
--
-- What nginx itself is told (authorities, ciphers), and what the gateway has elsewhere (memo, lease), is refused.
--
-- Laws (tests/nginx/redis/test_url.py): what is read is what Python reads; what cannot be read is a sentence, which
-- never holds a part of the login.

local address = require "resty.headgate.redis.address"
local split = require "resty.headgate.split"

local find, gsub, lower, match = string.find, string.gsub, string.lower, string.match

local M = {}

local PATIENT, PROMPT = 1.0, 0.05
local SCHEMES = {
  redis = "redis", rediss = "rediss", valkey = "redis", valkeys = "rediss",
  unix = "unix", ["redis+unix"] = "unix", ["valkey+unix"] = "unix",
}
local FORMS = {
  one = "user:password@host:6379/0",
  cluster = "user:password@host:6379,host:6380",
  sentinel = "user:password@host:26379,host:26379/name-of-the-master/0",
}
local UNITS = { us = 1e-6, ms = 1e-3, s = 1, [""] = 1 }
local FALLBACKS = { allow = true, deny = true, ["local"] = true }
local KNOWN = "deadline, fallback, nodes, db, sentinel_username, sentinel_password, ssl_cert_reqs, ssl_check_hostname,"
  .. " ssl_certfile, ssl_keyfile"
local INSTEAD = {
  memo = "write memo = true or false into init{}",
  lease = "write a lease into the rule",
  lease_units = "write a lease into the rule",
  ssl_ca_certs = "write lua_ssl_trusted_certificate into the http block",
  ssl_ca_path = "write lua_ssl_trusted_certificate into the http block",
  ssl_ca_data = "write lua_ssl_trusted_certificate into the http block",
  ssl_ciphers = "write lua_ssl_ciphers into the http block",
  ssl_min_version = "write lua_ssl_protocols into the http block",
}

local function decoded(text)
  return (gsub(text, "%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end))
end

local function filled(text) return text ~= nil and text ~= "" and text or nil end

local function unreadable(scheme, kind)
  return "The engine's URL " .. scheme .. "://… cannot be read. Write " .. scheme .. "://" .. FORMS[kind]
    .. ", with / and other special characters of the password as %2F and so on."
end

local function scheme_of(url)
  local scheme, rest = match(url, "^([%w+.-]*)://(.*)$")
  if not scheme then return nil, "What was given is not an engine. Write redis://host:6379/0." end
  if scheme == "memory" then
    return nil, 'memory:// is no server. Write init{ engine = "shared" }: then all is decided on the shared dict.'
  end
  local base, kind = match(scheme, "^(%w+)%+(%w+)$")
  if kind == "cluster" or kind == "sentinel" then
    if SCHEMES[base] and base ~= "unix" then return scheme, rest, SCHEMES[base], kind end
  elseif SCHEMES[scheme] then
    return scheme, rest, SCHEMES[scheme], "one"
  end
  return nil, scheme .. "://… is not an engine. Write redis://host:6379/0. Known: redis, rediss, valkey, valkeys, unix,"
    .. " and with +cluster or +sentinel all of them but unix."
end

-- Options by name, each checked to be one; nil if a part of the login may be among them.
local function options_of(query)
  local found = {}
  for _, pair in ipairs(split.split(query or "", "&")) do
    local name, value = split.cut(pair, "=")
    name, value = decoded((gsub(name, "+", " "))), decoded((gsub(value or "", "+", " ")))
    if find(name, "@", 1, true) then return nil end
    if name ~= "" then found[name] = value end
  end
  return found
end

local function host_of(text, port)
  local host, given = match(text, "^%[([%x:.%%]+)%](.*)$")
  if not host then host, given = match(text, "^([^:%[%]]*)(.*)$") end
  if not host then return nil end
  if given ~= "" then
    local digits = match(given, "^:(%d*)$")
    if not digits or tonumber(filled(digits) or 0) > 65535 then return nil end
    port = tonumber(filled(digits)) or port
  end
  return lower(host), port
end

local function hosts_of(text, port)
  local found = {}
  for i, one in ipairs(split.split(text, ",")) do
    local host, at = host_of(one, port)
    if not filled(host) then return nil end
    found[i] = { host = host, port = at }
  end
  return found
end

local function seconds(text)
  local amount, unit = match(text, "^(%d+%.?%d*)(%a*)$")
  if not amount then amount, unit = match(text, "^(%.%d+)(%a*)$") end
  local found = amount and UNITS[unit] and tonumber(amount) * UNITS[unit]
  return found and found > 0 and found or nil
end

-- What is put around the engine; or a sentence.
local function around(options)
  local chosen = { fallback = options.fallback }
  if options.deadline then
    chosen.deadline = seconds(options.deadline)
    if not chosen.deadline then
      return nil, "deadline is a length of time, such as 50ms or 0.05 (seconds), not '" .. options.deadline .. "'."
    end
  end
  if options.fallback and not FALLBACKS[options.fallback] then
    return nil, "fallback is allow, deny or local, not '" .. options.fallback .. "'."
  end
  if options.nodes then
    chosen.nodes = match(options.nodes, "^%d+$") and tonumber(options.nodes)
    if not chosen.nodes or chosen.nodes < 1 then
      return nil, "nodes is a whole number of at least 1, not '" .. options.nodes .. "'."
    end
  end
  chosen.patience = chosen.deadline or (chosen.fallback and PROMPT) or PATIENT
  return chosen
end

local OURS = { deadline = true, fallback = true, nodes = true, db = true }
local TLS = { ssl_cert_reqs = true, ssl_check_hostname = true, ssl_certfile = true, ssl_keyfile = true }
local WATCHERS = { sentinel_username = true, sentinel_password = true }

local function refused(options, plain, kind)
  for name in pairs(options) do
    if INSTEAD[name] then
      return "The engine's URL has " .. name .. ", which a gateway has elsewhere: " .. INSTEAD[name] .. "."
    end
    if not OURS[name] and not (WATCHERS[name] and kind == "sentinel") and not (TLS[name] and plain == "rediss") then
      local why = TLS[name] and ", which belongs to rediss://." or ", which is no option. Known: " .. KNOWN .. "."
      return 'The engine\'s URL has "' .. name .. '"' .. why
    end
  end
  return nil
end

local NO = { ["false"] = true, no = true, ["0"] = true, off = true }

local function tls_of(options)
  local reqs = options.ssl_cert_reqs or "required"
  if reqs ~= "required" and reqs ~= "none" then
    return nil, "ssl_cert_reqs is required or none. Write rediss://…?ssl_cert_reqs=none only where nobody can listen."
  end
  if (options.ssl_certfile == nil) ~= (options.ssl_keyfile == nil) then
    return nil, "A certificate needs its key: write rediss://…?ssl_certfile=…&ssl_keyfile=…"
  end
  local named = not NO[lower(options.ssl_check_hostname or "")]
  return { verify = reqs == "required", named = named, certificate = options.ssl_certfile, key = options.ssl_keyfile }
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

local function one(said)
  if said.plain == "unix" then
    local db = db_of(said.options.db)
    if not filled(said.path) or not db or said.places ~= "" then return nil end
    return { address = address.new { path = decoded(said.path), user = said.user, password = said.password, db = db } }
  end
  local host, port = host_of(said.places, 6379)
  local in_path = db_of(gsub(said.path, "^/+", ""):gsub("/+$", ""))
  local db = said.options.db and db_of(said.options.db) or in_path
  if not host or not in_path or (said.options.db and not db_of(said.options.db)) then return nil end
  return { address = address.new {
    host = filled(host) or "localhost", port = port, user = said.user, password = said.password, db = db,
    tls = said.tls,
  } }
end

local function cluster(said)
  local hosts = hosts_of(said.places, 6379)
  local in_path, db = match(said.path, "^/?(%d*)/?$"), db_of(said.options.db)
  if not hosts or not in_path or not db then return nil end
  if db ~= 0 or (db_of(in_path) or 0) ~= 0 then
    return nil, "A cluster has no database but 0: write " .. said.scheme .. "://host:6379 without a number."
  end
  for i, place in ipairs(hosts) do
    place.user, place.password, place.tls = said.user, said.password, said.tls
    hosts[i] = address.new(place)
  end
  return { seeds = hosts }
end

local function sentinel(said)
  local hosts = hosts_of(said.places, 26379)
  if not hosts then return nil end
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
    host = hosts[1].host, port = hosts[1].port, user = said.user, password = said.password, tls = said.tls, db = db,
  }
  return { watchers = hosts, name = decoded(name), master = master }
end

local READ = { one = one, cluster = cluster, sentinel = sentinel }

-- All that a URL says: kind ("one", "cluster", "sentinel") with its addresses, deadline, fallback, nodes, and patience,
-- the deadline chosen or not. Else nil and a sentence.
function M.read(url)
  local scheme, rest, plain, kind = scheme_of(url)
  if not scheme then return nil, rest end
  local authority, behind = match(rest, "^([^/?#]*)(.*)$")
  local path, query = split.cut(behind, "?")
  local options = options_of(query)
  if not options or find(behind, "#", 1, true) then return nil, unreadable(scheme, kind) end
  local chosen, why = around(options)
  why = why or refused(options, plain, kind)
  if why then return nil, why end
  local said = { scheme = scheme, plain = plain, path = path, options = options }
  if plain == "rediss" then
    said.tls, why = tls_of(options)
    if why then return nil, why end
  end
  local login, places = match(authority, "^(.*)@([^@]*)$")
  said.places = places or authority
  said.user, said.password = login_of(login)
  local found
  found, why = READ[kind](said)
  if not found then return nil, why or unreadable(scheme, kind) end
  found.kind, found.deadline, found.fallback = kind, chosen.deadline, chosen.fallback
  found.nodes, found.patience = chosen.nodes, chosen.patience
  return found
end

return M
