-- Sends one request on one connection: opened or taken from nginx's pool, used, and returned.
--
-- The fast path is a reused connection, one send, one receive. A new connection logs in first: TLS, AUTH, SELECT, and
-- only then a request is sent, since a request behind a refused SELECT would be decided in another database. Before
-- each step that may wait, the socket's timeout is set to what is left of the deadline.
--
-- nginx closes an idle connection in its pool when the server does. One that ended at this very moment may still be
-- taken. Two cases look alike in a log and are not:
--
--   the send fails        the server never had the whole request, so it was not charged: it is sent on another
--                         connection, and each that fails so leaves the pool, until one is new
--   the receive fails     the server may have read it, decided, and died: the request is never repeated
--
-- Where a new connection missed the deadline, another is opened in the background, with a second of time, for later
-- requests: otherwise a distant server with TLS could never be reached within a short deadline.
--
-- Laws (tests/nginx/engines/redis/test_connection.py): no call takes longer than until `deadline_at`; a request that
-- was sent and not answered is never sent again; a connection returns to its pool only if exactly the replies were
-- read; nothing but the greeting is sent before the login was accepted.
--
-- `deadline_at` is a time of ngx.now(), nginx's own clock, which stops while Lua runs and is fresh after each wait. One
-- wait cannot be bounded here: where a new connection needs a name looked up, that takes up to nginx's
-- resolver_timeout.

local errors = require "resty.headgate.engines.redis.errors"
local resp = require "resty.headgate.engines.redis.resp"

local ceil = math.ceil
local tcp, now, timer_at = ngx.socket.tcp, require("resty.headgate.clock").now, ngx.timer.at
local read_reply = resp.read

local M = {}

local READ_BYTES = 4096 -- a decision's reply is about 70
local IDLE_MS, POOL_SIZE = 60000, 256 -- of unused connections, in each worker
local OPEN_TIMEOUT_S = 1.0 -- in the background
local MAX_BACKGROUND_OPENS = 4 -- at once
local MALFORMED = "malformed reply"

-- Sets the socket's timeout to the time that is left; returns nil if there is none.
local function set_timeout(sock, deadline_at)
  local seconds_left = deadline_at - now()
  if seconds_left <= 0 then return nil end
  sock:settimeout(ceil(seconds_left * 1000))
  return true
end

-- Reads `count` replies. Returns the last one, or the first error among them, and whether nothing else came; else nil
-- and why. Each is put into `replies`, if that is given.
local function read_replies(sock, deadline_at, count, replies)
  local text, why = sock:receiveany(READ_BYTES)
  if not text then return nil, why end
  local at, reply, first_error = 1, nil, nil
  for i = 1, count do
    local value, next_at = read_reply(text, at)
    while value == nil do
      if not next_at then return nil, MALFORMED end
      if not set_timeout(sock, deadline_at) then return nil, "timeout" end
      local more
      if next_at > READ_BYTES then more, why = sock:receive(next_at) else more, why = sock:receiveany(READ_BYTES) end
      if not more then return nil, why end
      text = text .. more
      value, next_at = read_reply(text, at)
    end
    at, reply = next_at, value
    if replies then replies[i] = value end
    if not first_error and type(value) == "table" and value.error then first_error = value end
  end
  return first_error or reply, at == #text + 1
end

-- Returns the client certificate and its key, read once.
local function client_certificate(tls)
  if not tls.chain then
    local ssl = require "ngx.ssl"
    local function contents(path)
      local file, why = io.open(path, "rb")
      if not file then return nil, why end
      local text = file:read("*a")
      file:close()
      return text
    end
    local chain, key, why
    chain, why = contents(tls.certificate)
    if chain then chain, why = ssl.parse_pem_cert(chain) end
    if not chain then return nil, nil, "ssl_certfile: " .. why end
    key, why = contents(tls.key)
    if key then key, why = ssl.parse_pem_priv_key(key) end
    if not key then return nil, nil, "ssl_keyfile: " .. why end
    tls.chain, tls.private = chain, key
  end
  return tls.chain, tls.private
end

local function start_tls(sock, address)
  local tls = address.tls
  if tls.certificate then
    local chain, key, why = client_certificate(tls)
    if not chain then return why end
    local ok
    ok, why = sock:setclientcert(chain, key)
    if not ok then return why end
  end
  local ok, why = sock:sslhandshake(false, tls.check_hostname and address.host or nil, tls.verify)
  return not ok and (why or "the handshake failed") or nil
end

-- Returns the failure of opening a connection. If a second handshake fails, nginx logs the reason, and reports here
-- only that the socket is closed.
local function open_failure(address, why)
  if address.tls and why == "closed" then why = "closed in the handshake; nginx's log tells of its certificate" end
  return errors.connect_failed(address.text .. ": " .. (why == "timeout" and "not reached in time" or why), why)
end

-- Logs in on a new connection; returns a failure, or nil.
local function log_in(sock, address, deadline_at)
  if not set_timeout(sock, deadline_at) then return open_failure(address, "timeout") end
  if address.tls then
    local why = start_tls(sock, address)
    if why then return open_failure(address, why) end
    if not set_timeout(sock, deadline_at) then return open_failure(address, "timeout") end
  end
  if not address.greeting then return nil end
  local sent, why = sock:send(address.greeting)
  if not sent then return open_failure(address, why) end
  local reply, complete = read_replies(sock, deadline_at, address.replies)
  if reply == nil then return open_failure(address, complete) end
  if type(reply) == "table" then return errors.from_reply(reply.error) end
  if not complete then return errors.unusable(address.text .. " sent more replies than there were requests") end
  if not set_timeout(sock, deadline_at) then return open_failure(address, "timeout") end
  return nil
end

-- Opens a connection. Returns it, and whether it was used before; else nil and a failure.
local function open(address, deadline_at)
  local sock = tcp()
  if not set_timeout(sock, deadline_at) then return nil, open_failure(address, "timeout") end
  local ok, why
  if address.port then
    ok, why = sock:connect(address.target, address.port, address.options)
  else
    ok, why = sock:connect(address.target, address.options)
  end
  if not ok then return nil, open_failure(address, why) end
  if sock:getreusedtimes() > 0 then return sock, true end
  local failure = log_in(sock, address, deadline_at)
  if failure then
    sock:close()
    return nil, failure
  end
  return sock, false
end

-- Opens a connection for the pool. Its failure is not reported: the request that missed its deadline was.
local function open_in_background(premature, address)
  if not premature then
    local sock = open(address, now() + OPEN_TIMEOUT_S)
    if sock then sock:setkeepalive(IDLE_MS, POOL_SIZE) end
  end
  address.background_opens = address.background_opens - 1
end

local function schedule_open(address)
  address.background_opens = address.background_opens or 0
  if address.background_opens < MAX_BACKGROUND_OPENS and timer_at(0, open_in_background, address) then
    address.background_opens = address.background_opens + 1
  end
end

-- Sends bytes. Returns the connection, and whether it was used before; else nil and a failure, and no server has the
-- request. Of a batch a server may have received some requests: those are lost.
local function send_request(address, packed, deadline_at, is_batch)
  while true do
    local sock, reused = open(address, deadline_at)
    if not sock then
      if reused.kind == "timeout" then schedule_open(address) end
      return nil, reused
    end
    local sent, why = sock:send(packed)
    if sent then return sock, reused end
    sock:close()
    if is_batch then
      local failure_of = why == "timeout" and errors.timed_out or errors.connection_lost
      return nil, failure_of(address.text .. ": " .. why)
    end
    if not reused then return nil, open_failure(address, why) end
  end
end

-- Sends bytes and reads `count` replies: the result of read_replies, or nil and a failure.
local function exchange(address, packed, deadline_at, count, replies)
  local sock, reused = send_request(address, packed, deadline_at, replies)
  if not sock then return nil, reused end
  local reply, complete = nil, "timeout"
  if set_timeout(sock, deadline_at) then reply, complete = read_replies(sock, deadline_at, count, replies) end
  if complete == true then
    sock:setkeepalive(IDLE_MS, POOL_SIZE)
    return reply
  end
  sock:close()
  if reply ~= nil then return nil, errors.unusable(address.text .. " sent more replies than there were requests") end
  if complete == "timeout" then
    if not reused then schedule_open(address) end
    return nil, errors.timed_out(address.text .. ": no reply in time")
  end
  if complete == MALFORMED then return nil, errors.unusable(address.text .. ": " .. complete) end
  return nil, errors.connection_lost(address.text .. ": " .. complete)
end

-- Sends bytes and reads `count` replies (1). Returns the last of them, or nil and a failure: an error reply is a
-- failure.
function M.request(address, packed, deadline_at, count)
  local reply, failure = exchange(address, packed, deadline_at, count or 1, nil)
  if reply == nil then return nil, failure end
  if type(reply) == "table" and reply.error then return nil, errors.from_reply(reply.error) end
  return reply
end

-- Sends several requests at once and puts their replies into `replies`, errors among them. Returns whether all came; if
-- not, a failure, and some may have come.
function M.request_all(address, packed, deadline_at, count, replies)
  local reply, failure = exchange(address, packed, deadline_at, count, replies)
  return reply ~= nil, failure
end

return M
