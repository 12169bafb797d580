-- One question on one connection: opened or taken from nginx's pool, asked, answered, given back.
--
-- The common way is straight: a connection that was used before, one send, one receive. A new one is let in first: TLS,
-- AUTH, SELECT, and only then is anything asked, since a question that came behind a refused SELECT would be decided in
-- another database. Before each step that may wait, the socket is told how much time is left of the whole.
--
-- nginx closes an idle connection in its pool when the server does. One that ended in this very moment may still be
-- taken. Two cases look alike in a log and are not:
--
--   the send fails        the server never had the whole question, so it was not charged: it is asked on another
--                         connection, and each that fails so leaves the pool, until one is new
--   the receive fails     the server may have read it, decided, and died: nobody asks that question again
--
-- Where a new connection was not asked and answered within the deadline, another is opened behind it, with a second of
-- time, for those who come later: otherwise a far server with TLS could never be reached within a short deadline.
--
-- Laws (tests/nginx/engines/redis/test_connection.py): no call takes longer than until `by`; what was sent and not
-- answered is never sent again; a connection returns to its pool only if exactly the replies were read; nothing but the
-- greeting is said before the login was accepted.
--
-- `by` is a time of ngx.now(), nginx's own clock, which stands still while Lua runs and is fresh after each wait. One
-- wait is not ours to bound: where a new connection needs a name looked up, that takes as long as nginx's
-- resolver_timeout lets it.

local resp = require "resty.headgate.engines.redis.resp"
local trouble = require "resty.headgate.engines.redis.errors"

local ceil = math.ceil
local tcp, now, timer_at = ngx.socket.tcp, require("resty.headgate.clock").now, ngx.timer.at
local read = resp.read

local M = {}

local MOST = 4096 -- bytes read at once; a decision's reply is about 70
local IDLE_MS, POOL = 60000, 256 -- how long an unused connection stays, and how many of them in each worker
local OPENING = 1.0 -- seconds that opening a connection may take behind the asker
local AHEAD = 4 -- connections that are opened so at once
local GIBBERISH = "what it says is no reply"

-- Tells the socket what is left; nil if nothing is.
local function hurry(sock, by)
  local left = by - now()
  if left <= 0 then return nil end
  sock:settimeout(ceil(left * 1000))
  return true
end

-- `count` replies: the last one, or the first error among them; and whether nothing else came. Else nil and why. Each
-- of them is put `into` a list, if there is one.
local function replies(sock, by, count, into)
  local text, why = sock:receiveany(MOST)
  if not text then return nil, why end
  local at, answer, refusal = 1, nil, nil
  for i = 1, count do
    local found, beyond = read(text, at)
    while found == nil do
      if not beyond then return nil, GIBBERISH end
      if not hurry(sock, by) then return nil, "timeout" end
      local more
      if beyond > MOST then more, why = sock:receive(beyond) else more, why = sock:receiveany(MOST) end
      if not more then return nil, why end
      text = text .. more
      found, beyond = read(text, at)
    end
    at, answer = beyond, found
    if into then into[i] = found end
    if not refusal and type(found) == "table" and found.error then refusal = found end
  end
  return refusal or answer, at == #text + 1
end

-- The certificate that we show, read once.
local function shown(tls)
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

local function secure(sock, address)
  local tls = address.tls
  if tls.certificate then
    local chain, key, why = shown(tls)
    if not chain then return why end
    local ok
    ok, why = sock:setclientcert(chain, key)
    if not ok then return why end
  end
  local ok, why = sock:sslhandshake(false, tls.named and address.host or nil, tls.verify)
  return not ok and (why or "the handshake failed") or nil
end

-- Of a second handshake that fails, nginx says in its log why, and here only that the socket is closed.
local function not_opened(address, why)
  if address.tls and why == "closed" then why = "closed in the handshake; nginx's log tells of its certificate" end
  return trouble.unreached(address.text .. ": " .. (why == "timeout" and "not reached in time" or why), why)
end

-- Lets us in on a new connection; trouble if it does not.
local function greet(sock, address, by)
  if not hurry(sock, by) then return not_opened(address, "timeout") end
  if address.tls then
    local why = secure(sock, address)
    if why then return not_opened(address, why) end
    if not hurry(sock, by) then return not_opened(address, "timeout") end
  end
  if not address.greeting then return nil end
  local sent, why = sock:send(address.greeting)
  if not sent then return not_opened(address, why) end
  local answer, whole = replies(sock, by, address.replies)
  if answer == nil then return not_opened(address, whole) end
  if type(answer) == "table" then return trouble.said(answer.error) end
  if not whole then return trouble.wrong(address.text .. " says more than it was asked") end
  if not hurry(sock, by) then return not_opened(address, "timeout") end
  return nil
end

-- A connection that may be asked on, and whether it was used before; else nil and trouble.
local function open(address, by)
  local sock = tcp()
  if not hurry(sock, by) then return nil, not_opened(address, "timeout") end
  local ok, why
  if address.port then
    ok, why = sock:connect(address.to, address.port, address.options)
  else
    ok, why = sock:connect(address.to, address.options)
  end
  if not ok then return nil, not_opened(address, why) end
  if sock:getreusedtimes() > 0 then return sock, true end
  local failure = greet(sock, address, by)
  if failure then
    sock:close()
    return nil, failure
  end
  return sock, false
end

-- The failure itself has been told to the one who waited: whoever comes next finds out anew.
local function open_behind(premature, address)
  if not premature then
    local sock = open(address, now() + OPENING)
    if sock then sock:setkeepalive(IDLE_MS, POOL) end
  end
  address.opening = address.opening - 1
end

local function open_later(address)
  address.opening = address.opening or 0
  if address.opening < AHEAD and timer_at(0, open_behind, address) then address.opening = address.opening + 1 end
end

-- A connection on which all that is packed has been sent, and whether it was used before; else nil and trouble, and
-- nobody has the question. Of several questions somebody may have had some: those are lost.
local function sent_on(address, packed, by, several)
  while true do
    local sock, used = open(address, by)
    if not sock then
      if used.kind == "timeout" then open_later(address) end
      return nil, used
    end
    local sent, why = sock:send(packed)
    if sent then return sock, used end
    sock:close()
    if several then return nil, (why == "timeout" and trouble.late or trouble.lost)(address.text .. ": " .. why) end
    if not used then return nil, not_opened(address, why) end
  end
end

-- Sends what is packed and reads as many replies: what `replies` says of them, or nil and trouble.
local function exchange(address, packed, by, count, into)
  local sock, used = sent_on(address, packed, by, into)
  if not sock then return nil, used end
  local answer, whole = nil, "timeout"
  if hurry(sock, by) then answer, whole = replies(sock, by, count, into) end
  if whole == true then
    sock:setkeepalive(IDLE_MS, POOL)
    return answer
  end
  sock:close()
  if answer ~= nil then return nil, trouble.wrong(address.text .. " says more than it was asked") end
  if whole == "timeout" then
    if not used then open_later(address) end
    return nil, trouble.late(address.text .. ": no reply in time")
  end
  if whole == GIBBERISH then return nil, trouble.wrong(address.text .. ": " .. whole) end
  return nil, trouble.lost(address.text .. ": " .. whole)
end

-- Sends what is packed and reads as many replies (1); the last of them, or nil and trouble: an error reply is trouble.
function M.ask(address, packed, by, count)
  local answer, failure = exchange(address, packed, by, count or 1, nil)
  if answer == nil then return nil, failure end
  if type(answer) == "table" and answer.error then return nil, trouble.said(answer.error) end
  return answer
end

-- Sends several questions at once and puts their replies `into` a list, errors among them. Whether all came; if not,
-- why, and some may have come.
function M.ask_all(address, packed, by, count, into)
  local answer, failure = exchange(address, packed, by, count, into)
  return answer ~= nil, failure
end

return M
