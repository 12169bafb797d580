-- Returns the error for a key that holds a value that headgate did not write, of another type or unreadable: it names
-- the key. Nothing was written. The code is Redis's own: WRONGTYPE.
--
-- The assembler inserts it above every command.
local M = {}

-- `reply`: the server's reply, if there is one. An error that is not about the value (a missing right) is returned as
-- it is.
function M.wrong_value(key, reply)
  if reply and reply.err and string.sub(reply.err, 1, 9) ~= "WRONGTYPE" then return reply end
  return { err = "WRONGTYPE headgate: the key " .. key .. " holds a value that headgate did not write. Nothing was "
    .. "changed. Delete or move it, or choose another key or prefix." }
end

return M
