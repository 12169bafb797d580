-- Sends one request to several servers, one after the other, until one replies with a result.
--
-- Law: a server that does not reply leaves half of the time for the others.

local connection = require "resty.headgate.engines.redis.connection"
local errors = require "resty.headgate.engines.redis.errors"

-- Returns the reply, the index of its server in the list, and the servers before it that failed; else nil, nil and a
-- failure.
return function(addresses, packed, deadline_at, server_kind, empty_text)
  local failures, unanswered = {}, {}
  for i, address in ipairs(addresses) do
    local reply, failure = connection.request(address, packed, (ngx.now() + deadline_at) / 2)
    if reply and (type(reply) ~= "table" or reply[1] ~= nil) then return reply, i, unanswered end
    failures[i] = address.text .. ": " .. (failure and failure.text or empty_text)
    unanswered[i] = address
  end
  return nil, nil, errors.connect_failed("no " .. server_kind .. " could tell (" .. table.concat(failures, "; ") .. ")")
end
