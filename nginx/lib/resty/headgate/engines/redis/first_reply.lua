-- One question to several servers, one after the other, until one tells something.
--
-- Law: one that does not answer leaves half of the time for the others.

local line = require "resty.headgate.engines.redis.connection"
local trouble = require "resty.headgate.engines.redis.errors"

-- The answer, whose it is (a place in the list), and who was silent; else nil, nil and trouble.
return function(addresses, packed, by, who, lacking)
  local failures, silent = {}, {}
  for i, address in ipairs(addresses) do
    local reply, failure = line.ask(address, packed, (ngx.now() + by) / 2)
    if reply and (type(reply) ~= "table" or reply[1] ~= nil) then return reply, i, silent end
    failures[i] = address.text .. ": " .. (failure and failure.text or lacking)
    silent[i] = address
  end
  return nil, nil, trouble.unreached("no " .. who .. " could tell (" .. table.concat(failures, "; ") .. ")")
end
