-- Parses the options of an engine's URL, behind its question mark. The twin of engines/url_options.py. Pure.
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
-- Laws (tests/nginx/engines/redis/test_url.py): an option is used or refused, never ignored; what Python refuses is
-- refused here.

local duration = require "resty.headgate.text.duration"
local nearest = require "resty.headgate.text.closest_spelling"
local strings = require "resty.headgate.text.strings"

local concat, find, gsub, lower = table.concat, string.find, string.gsub, string.lower

local M = {}

local DEFAULT_DEADLINE_S, FALLBACK_DEADLINE_S = 1.0, 0.05
local HORIZON_US = 366 * 86400 * 1000000
local MAX_VALUE = { nodes = 1000000, db = 10 ^ 16 }

local NAMES = { "deadline", "fallback", "denial_cache", "nodes", "db" }
local SENTINEL_NAMES = { "sentinel_username", "sentinel_password" }
local TLS_NAMES = { "ssl_cert_reqs", "ssl_check_hostname", "ssl_certfile", "ssl_keyfile" }

-- Hints for names that other clients use, and for options that are written elsewhere.
local DEADLINE_HINT = "Write deadline=50ms: it bounds the whole of a decision."
local LOGIN_HINT = "Write them in front of the host: redis://user:password@host:6379/0."
local RULE_HINT = "Write prefetch: 100ms into the rule, or into defaults."
local HINTS = {
  timeout = DEADLINE_HINT, socket_timeout = DEADLINE_HINT, socket_connect_timeout = DEADLINE_HINT,
  connect_timeout = DEADLINE_HINT,
  fail_open = "Write fallback=allow.", fail_closed = "Write fallback=deny.",
  cache = "Write denial_cache=on.", memo = "Write denial_cache=on.",
  lease = RULE_HINT, lease_units = RULE_HINT,
  username = LOGIN_HINT, user = LOGIN_HINT, password = LOGIN_HINT,
  ssl = "Write rediss:// in place of redis://.", tls = "Write rediss:// in place of redis://.",
}
local TRUSTED_HINT = "write lua_ssl_trusted_certificate into the http block"
local NGINX_HINTS = {
  ssl_ca_certs = TRUSTED_HINT, ssl_ca_path = TRUSTED_HINT, ssl_ca_data = TRUSTED_HINT,
  ssl_ciphers = "write lua_ssl_ciphers into the http block",
  ssl_min_version = "write lua_ssl_protocols into the http block",
  ssl_password = "name a key file that has no password",
}
local RULE_OPTIONS = { prefetch = true, prefetch_units = true }

local function set_of(list)
  local result = {}
  for _, name in ipairs(list) do result[name] = true end
  return result
end
local IS_NAME, IS_SENTINEL, IS_TLS = set_of(NAMES), set_of(SENTINEL_NAMES), set_of(TLS_NAMES)

local function add(names, more)
  for _, name in ipairs(more) do names[#names + 1] = name end
end

local function option_names(base_scheme, kind)
  local names = {}
  add(names, NAMES)
  if kind == "sentinel" then add(names, SENTINEL_NAMES) end
  if base_scheme == "rediss" then add(names, TLS_NAMES) end
  return names
end

local function hint_for(name, base_scheme, kind)
  local names = option_names(base_scheme, kind)
  local suggestion = nearest.nearest(name, names)
  return suggestion and "Did you mean " .. suggestion .. "?" or "Known: " .. concat(names, ", ") .. "."
end

-- Returns a sentence if this URL has no such option.
local function option_error(name, base_scheme, kind)
  if IS_NAME[name] or (IS_SENTINEL[name] and kind == "sentinel") or (IS_TLS[name] and base_scheme == "rediss") then
    return nil
  end
  if RULE_OPTIONS[name] then
    return "The engine's URL has " .. name .. ", which a rulebook says rule by rule. " .. RULE_HINT
  end
  local subject = 'The engine\'s URL has "' .. name:sub(1, 40) .. '", which '
  if IS_SENTINEL[name] then return subject .. "belongs to redis+sentinel://." end
  if NGINX_HINTS[name] and base_scheme == "rediss" then
    return subject .. "nginx has elsewhere: " .. NGINX_HINTS[name] .. "."
  end
  if IS_TLS[name] or NGINX_HINTS[name] then return subject .. "belongs to rediss://." end
  return subject .. "is no option. " .. (HINTS[name] or hint_for(name, base_scheme, kind))
end

local ON_WORDS = { on = true, ["1"] = true, ["true"] = true, yes = true }
local OFF_WORDS = { off = true, ["0"] = true, ["false"] = true, no = true }

local function switch(name, text)
  local word = lower(text)
  if ON_WORDS[word] then return true end
  if OFF_WORDS[word] then return false end
  return nil, name .. " is on or off, not '" .. text .. "'."
end

local function whole_number(name, text, min_value)
  local result = find(text, "^%d+$") and #text <= 16 and tonumber(text)
  return result and result >= min_value and result <= MAX_VALUE[name] and result or nil
end

local function any_text(_, text) return text end

local READERS = {
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
    local result = whole_number(name, text, 1)
    if not result then return nil, "nodes is a whole number from 1 to 1,000,000, not '" .. text .. "'." end
    return result
  end,
  db = function(name, text)
    local result = whole_number(name, text, 0)
    if not result then
      return nil, "db is the number of a database, not '" .. text .. "'. Write redis://host:6379/0."
    end
    return result
  end,
  sentinel_username = any_text, sentinel_password = any_text, ssl_certfile = any_text, ssl_keyfile = any_text,
  ssl_cert_reqs = function(_, text)
    if text == "required" or text == "none" then return text end
    return nil, "ssl_cert_reqs is required or none. Write rediss://…?ssl_cert_reqs=none only where nobody can listen."
  end,
  ssl_check_hostname = switch,
}

-- Decodes %XX in a text.
function M.percent_decode(text)
  return (gsub(text, "%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end))
end

local function decode_value(text) return M.percent_decode((gsub(text or "", "+", " "))) end

-- Returns the options by name, and `timeout`: the deadline or its default. Else nil and a sentence.
function M.parse(query, base_scheme, kind)
  local result = {}
  for _, pair in ipairs(strings.split(query or "", "&")) do
    if pair ~= "" then
      local name, text = strings.cut(pair, "=")
      name, text = decode_value(name), decode_value(text)
      local why = option_error(name, base_scheme, kind)
      if why then return nil, why end
      if result[name] ~= nil then return nil, "The engine's URL has " .. name .. " twice. Write it once." end
      result[name], why = READERS[name](name, text)
      if why then return nil, why end
    end
  end
  if (result.ssl_certfile == nil) ~= (result.ssl_keyfile == nil) then
    return nil, "A certificate needs its key: write rediss://…?ssl_certfile=…&ssl_keyfile=…"
  end
  if (result.sentinel_username or "") ~= "" and (result.sentinel_password or "") == "" then
    return nil, "sentinel_username has no effect without sentinel_password. Write both."
  end
  result.timeout = result.deadline or (result.fallback and FALLBACK_DEADLINE_S) or DEFAULT_DEADLINE_S
  return result
end

return M
