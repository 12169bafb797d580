-- The options of an engine's URL, behind its question mark. The twin of engines/url_options.py. Pure.
--
--   ?deadline=50ms       how long a decision may take: 1s, and 50ms where a fallback is chosen
--   ?fallback=local      what is done when there is no answer: allow, deny, or local
--   ?denial_cache=off    refusals are not repeated from memory; init's own option goes first
--   ?nodes=4             how many share the limits when the engine is gone, if that is known beforehand
--   ?db=0                the database
--   ?sentinel_username=..&sentinel_password=..                    of redis+sentinel://: a login at the sentinels
--   ?ssl_cert_reqs=none, ?ssl_check_hostname=off, ?ssl_certfile=..&ssl_keyfile=..      of rediss://
--
-- Refuses options that belong into the rulebook (prefetch) or into nginx.conf (authorities, ciphers).
--
-- Laws (tests/nginx/engines/redis/test_url.py): an option is in force or refused, never ignored; what Python refuses is
-- refused here.

local duration = require "resty.headgate.text.duration"
local nearest = require "resty.headgate.text.nearest"
local split = require "resty.headgate.text.strings"

local concat, find, gsub, lower = table.concat, string.find, string.gsub, string.lower

local M = {}

local PATIENT, PROMPT = 1.0, 0.05
local HORIZON_US = 366 * 86400 * 1000000
local MOST = { nodes = 1000000, db = 10 ^ 16 }

local NAMES = { "deadline", "fallback", "denial_cache", "nodes", "db" }
local SENTINEL = { "sentinel_username", "sentinel_password" }
local TLS = { "ssl_cert_reqs", "ssl_check_hostname", "ssl_certfile", "ssl_keyfile" }

-- Hints for names that other clients use, and for options that are written elsewhere.
local DEADLINE = "Write deadline=50ms: it bounds the whole of a decision."
local LOGIN = "Write them in front of the host: redis://user:password@host:6379/0."
local RULE = "Write prefetch: 100ms into the rule, or into defaults."
local INSTEAD = {
  timeout = DEADLINE, socket_timeout = DEADLINE, socket_connect_timeout = DEADLINE, connect_timeout = DEADLINE,
  fail_open = "Write fallback=allow.", fail_closed = "Write fallback=deny.",
  cache = "Write denial_cache=on.", memo = "Write denial_cache=on.",
  lease = RULE, lease_units = RULE,
  username = LOGIN, user = LOGIN, password = LOGIN,
  ssl = "Write rediss:// in place of redis://.", tls = "Write rediss:// in place of redis://.",
}
local TRUSTED = "write lua_ssl_trusted_certificate into the http block"
local ELSEWHERE = {
  ssl_ca_certs = TRUSTED, ssl_ca_path = TRUSTED, ssl_ca_data = TRUSTED,
  ssl_ciphers = "write lua_ssl_ciphers into the http block",
  ssl_min_version = "write lua_ssl_protocols into the http block",
  ssl_password = "name a key file that has no password",
}
local RULED = { prefetch = true, prefetch_units = true }

local function set_of(list)
  local found = {}
  for _, name in ipairs(list) do found[name] = true end
  return found
end
local IS_NAME, IS_SENTINEL, IS_TLS = set_of(NAMES), set_of(SENTINEL), set_of(TLS)

local function add(names, more)
  for _, name in ipairs(more) do names[#names + 1] = name end
end

local function known_to(plain, kind)
  local names = {}
  add(names, NAMES)
  if kind == "sentinel" then add(names, SENTINEL) end
  if plain == "rediss" then add(names, TLS) end
  return names
end

local function hint_for(name, plain, kind)
  local names = known_to(plain, kind)
  local near = nearest.nearest(name, names)
  return near and "Did you mean " .. near .. "?" or "Known: " .. concat(names, ", ") .. "."
end

-- A sentence if there is no such option of this URL.
local function refused(name, plain, kind)
  if IS_NAME[name] or (IS_SENTINEL[name] and kind == "sentinel") or (IS_TLS[name] and plain == "rediss") then
    return nil
  end
  if RULED[name] then return "The engine's URL has " .. name .. ", which a rulebook says rule by rule. " .. RULE end
  local what = 'The engine\'s URL has "' .. name:sub(1, 40) .. '", which '
  if IS_SENTINEL[name] then return what .. "belongs to redis+sentinel://." end
  if ELSEWHERE[name] and plain == "rediss" then return what .. "nginx has elsewhere: " .. ELSEWHERE[name] .. "." end
  if IS_TLS[name] or ELSEWHERE[name] then return what .. "belongs to rediss://." end
  return what .. "is no option. " .. (INSTEAD[name] or hint_for(name, plain, kind))
end

local SWITCH = { on = true, ["1"] = true, ["true"] = true, yes = true }
local OFF = { off = true, ["0"] = true, ["false"] = true, no = true }

local function switch(name, text)
  local word = lower(text)
  if SWITCH[word] then return true end
  if OFF[word] then return false end
  return nil, name .. " is on or off, not '" .. text .. "'."
end

local function whole(name, text, least)
  local found = find(text, "^%d+$") and #text <= 16 and tonumber(text)
  return found and found >= least and found <= MOST[name] and found or nil
end

local function any(_, text) return text end

local READ = {
  deadline = function(name, text)
    local us, why = duration.parse(text)
    if not us then return nil, name .. ": " .. why end
    if us > HORIZON_US then return nil, name .. " is longer than 366 days." end
    return us / 1000000
  end,
  fallback = function(_, text)
    if text == "allow" or text == "deny" or text == "local" then return text end
    return nil, "fallback is allow, deny or local, not '" .. text .. "'."
  end,
  denial_cache = switch,
  nodes = function(name, text)
    local found = whole(name, text, 1)
    if not found then return nil, "nodes is a whole number from 1 to 1,000,000, not '" .. text .. "'." end
    return found
  end,
  db = function(name, text)
    local found = whole(name, text, 0)
    if not found then return nil, "db is the number of a database, not '" .. text .. "'. Write redis://host:6379/0." end
    return found
  end,
  sentinel_username = any, sentinel_password = any, ssl_certfile = any, ssl_keyfile = any,
  ssl_cert_reqs = function(_, text)
    if text == "required" or text == "none" then return text end
    return nil, "ssl_cert_reqs is required or none. Write rediss://…?ssl_cert_reqs=none only where nobody can listen."
  end,
  ssl_check_hostname = switch,
}

-- A text with its %XX decoded.
function M.decoded(text)
  return (gsub(text, "%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end))
end

local function value_of(text) return M.decoded((gsub(text or "", "+", " "))) end

-- Returns the options by name, and `patience`: the deadline, chosen or not. Else nil and a sentence.
function M.read(query, plain, kind)
  local found = {}
  for _, pair in ipairs(split.split(query or "", "&")) do
    if pair ~= "" then
      local name, text = split.cut(pair, "=")
      name, text = value_of(name), value_of(text)
      local why = refused(name, plain, kind)
      if why then return nil, why end
      if found[name] ~= nil then return nil, "The engine's URL has " .. name .. " twice. Write it once." end
      found[name], why = READ[name](name, text)
      if why then return nil, why end
    end
  end
  if (found.ssl_certfile == nil) ~= (found.ssl_keyfile == nil) then
    return nil, "A certificate needs its key: write rediss://…?ssl_certfile=…&ssl_keyfile=…"
  end
  if (found.sentinel_username or "") ~= "" and (found.sentinel_password or "") == "" then
    return nil, "sentinel_username has no effect without sentinel_password. Write both."
  end
  found.patience = found.deadline or (found.fallback and PROMPT) or PATIENT
  return found
end

return M
