-- Parses an engine's URL, as Python does (engines/url.py, engines/url_schemes.py, engines/redis/topology.py). Pure.
--
--   redis://user:password@host:6379/0        rediss:// with TLS; valkey://, valkeys:// are the same
--   unix://user:password@/path/to.sock?db=0  redis+unix://, valkey+unix:// too
--   redis+cluster://user:password@host:6379,host:6380
--   redis+sentinel://user:password@host:26379,host:26379/name-of-the-master/0
--
-- Options follow (url_options.lua).
--
-- Laws (tests/nginx/engines/redis/test_url.py): the result is what Python parses; a URL that cannot be parsed is
-- refused with a sentence, which never contains a part of the login.

local server_address = require "resty.headgate.engines.redis.server_address"
local strings = require "resty.headgate.text.strings"
local url_options = require "resty.headgate.engines.redis.url_options"

local percent_decode = url_options.percent_decode
local find, gsub, lower, match = string.find, string.gsub, string.lower, string.match

local M = {}

local SCHEMES = {
  redis = "redis", rediss = "rediss", valkey = "redis", valkeys = "rediss",
  unix = "unix", ["redis+unix"] = "unix", ["valkey+unix"] = "unix",
}
local EXAMPLES = {
  one = "user:password@host:6379/0",
  unix = "user:password@/path/to.sock?db=0",
  cluster = "user:password@host:6379,host:6380",
  sentinel = "user:password@host:26379,host:26379/name-of-the-master/0",
}

local function non_empty(text) return text ~= nil and text ~= "" and text or nil end

local function unreadable_text(scheme, kind)
  return "The engine's URL " .. scheme .. "://… cannot be read. Write " .. scheme .. "://" .. EXAMPLES[kind]
    .. ", with / and other special characters of the password as %2F and so on."
end

-- Returns a refusal of a text that is not a URL, without a part that may be a login.
local function not_a_url(text)
  local safe_text = match(match(text, "([^@]*)$"), "^[^?]*")
  local is_address = find(safe_text, "^[%w._-]+:%d+$") or find(safe_text, "^[%w._-]+:%d+/%d+$")
  local example = is_address and safe_text or "host:6379/0"
  return '"' .. safe_text:sub(1, 80) .. '" is not an engine URL. Write redis://' .. example .. "."
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

-- Returns a refusal of one part of a URL, which it names and does not show.
local function refusal(fields, before, after, more)
  return before .. fields.scheme .. "://…" .. after .. " Write " .. fields.scheme .. "://" .. EXAMPLES[fields.kind]
    .. (more or "") .. "."
end

local function host_of(fields, text, port)
  local host, port_text = match(text, "^%[([%x:.%%]+)%](.*)$")
  if not host then host, port_text = match(text, "^([^:%[%]]*)(.*)$") end
  local digits = match(port_text, "^:([^:%[%]]*)$")
  if port_text ~= "" and not digits then
    local ipv6 = ", an IPv6 address in brackets: [::1]"
    return nil, refusal(fields, "The host in the engine's URL ", " cannot be read.", ipv6)
  end
  if host == "" and fields.kind ~= "one" then return nil, refusal(fields, "The engine's URL ", " lacks a host.") end
  if non_empty(digits) then
    port = match(digits, "^0*(%d%d?%d?%d?%d?)$") and tonumber(digits) or 0
    if port < 1 or port > 65535 then
      return nil, refusal(fields, "The port in the engine's URL ", " is not a number from 1 to 65535.")
    end
  end
  return { host = lower(host), port = port }
end

local function hosts_of(fields, port)
  local result = {}
  for i, host_text in ipairs(strings.split(fields.hosts_text, ",")) do
    local host_port, why = host_of(fields, host_text, port)
    if not host_port then return nil, why end
    result[i] = host_port
  end
  return result
end

local function tls_options(options)
  return {
    verify = options.ssl_cert_reqs ~= "none", check_hostname = options.ssl_check_hostname ~= false,
    certificate = options.ssl_certfile, key = options.ssl_keyfile,
  }
end

local function login_of(text)
  local user, password = strings.cut(text or "", ":")
  if not non_empty(password) then return nil, nil end
  return non_empty(percent_decode(user)), percent_decode(password)
end

local function db_of(text)
  if not non_empty(text) then return 0 end
  return match(text, "^%d+$") and tonumber(text) or nil
end

local function unix(fields)
  if not non_empty(fields.path) or fields.hosts_text ~= "" then
    return nil, refusal(fields, "The engine's URL ", " needs the path of a socket, which begins with /.")
  end
  return { address = server_address.new {
    path = percent_decode(fields.path), user = fields.user, password = fields.password, db = fields.options.db or 0,
  } }
end

local function single_server(fields)
  if find(fields.hosts_text, ",", 1, true) then
    local scheme = fields.scheme
    return nil, scheme .. ":// is one server, and this URL has several hosts. Write " .. scheme .. "+cluster://"
      .. EXAMPLES.cluster .. " or " .. scheme .. "+sentinel://" .. EXAMPLES.sentinel .. "."
  end
  local host_port, why = host_of(fields, fields.hosts_text, 6379)
  if not host_port then return nil, why end
  local path_db = db_of(gsub(fields.path, "^/+", ""):gsub("/+$", ""))
  if not path_db then
    return nil, refusal(fields, "The path of the engine's URL ", " is not the number of a database.")
  end
  return { address = server_address.new {
    host = non_empty(host_port.host) or "localhost", port = host_port.port, user = fields.user,
    password = fields.password, db = fields.options.db or path_db, tls = fields.tls,
  } }
end

local function cluster(fields)
  local hosts, why = hosts_of(fields, 6379)
  if not hosts then return nil, why end
  if (fields.options.db or db_of(match(fields.path, "^/*(.-)/*$"))) ~= 0 then
    return nil, "A cluster has no database but 0: write " .. fields.scheme .. "://host:6379 without a number."
  end
  for i, host_port in ipairs(hosts) do
    host_port.user, host_port.password, host_port.tls = fields.user, fields.password, fields.tls
    hosts[i] = server_address.new(host_port)
  end
  return { seeds = hosts }
end

local function sentinel(fields)
  local hosts, why = hosts_of(fields, 26379)
  if not hosts then return nil, why end
  local name, db = strings.cut(match(fields.path, "^/*(.-)/*$"), "/")
  db = db_of(db)
  if name == "" or not db then
    return nil, "Which master? Write " .. fields.scheme .. "://" .. EXAMPLES.sentinel .. "."
  end
  for i, host_port in ipairs(hosts) do
    host_port.user = non_empty(fields.options.sentinel_username)
    host_port.password = non_empty(fields.options.sentinel_password)
    host_port.tls = fields.tls
    hosts[i] = server_address.new(host_port)
  end
  local master = server_address.new {
    host = hosts[1].host, port = hosts[1].port, user = fields.user, password = fields.password, tls = fields.tls,
    db = fields.options.db or db,
  }
  return { sentinels = hosts, name = percent_decode(name), master = master }
end

local READERS = { one = single_server, unix = unix, cluster = cluster, sentinel = sentinel }

-- Parses a URL: kind ("one", "cluster", "sentinel") with its addresses, and its options deadline, fallback,
-- denial_cache, nodes, and timeout, the deadline or its default. Else nil and a sentence.
function M.parse(url)
  local scheme, rest, base_scheme, kind = scheme_of(url)
  if not scheme then return nil, rest end
  local authority, after_authority = match(rest, "^([^/?#]*)(.*)$")
  local path, query = strings.cut(after_authority, "?")
  -- A password whose special characters are not escaped: no part of it is named.
  local fragment = match(after_authority, "#(.*)$")
  if find(fragment or query or "", "@", 1, true) or find(query or "", "@", 1, true) then
    return nil, unreadable_text(scheme, kind)
  end
  if fragment then
    return nil, "The engine's URL " .. scheme .. "://… has a # and something behind it. Leave it out, or write # in a"
      .. " password as %23: " .. scheme .. "://" .. EXAMPLES[kind] .. "."
  end
  local options, why = url_options.parse(query, base_scheme, kind)
  if not options then return nil, why end
  if find(path, "@", 1, true) then return nil, unreadable_text(scheme, kind) end
  local fields = { scheme = scheme, kind = kind, base_scheme = base_scheme, path = path, options = options }
  if base_scheme == "rediss" then fields.tls = tls_options(options) end
  local login, hosts_text = match(authority, "^(.*)@([^@]*)$")
  fields.hosts_text = hosts_text or authority
  fields.user, fields.password = login_of(login)
  local result
  result, why = READERS[kind](fields)
  if not result then return nil, why end
  result.kind, result.deadline, result.fallback = kind == "unix" and "one" or kind, options.deadline, options.fallback
  result.nodes, result.timeout, result.denial_cache = options.nodes, options.timeout, options.denial_cache
  return result
end

return M
