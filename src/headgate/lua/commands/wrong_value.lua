-- What is answered where a key holds a value that headgate did not write, of another type or unreadable: an error that
-- names the key. Nothing was written. The code is Redis's own, so whoever knows WRONGTYPE knows this.
--
-- The assembler puts it above every command.
local M = {}

-- `reply`: what the server gave, if it gave something. An error of it that is not about the value (a right is missing)
-- is answered as it is.
function M.wrong_value(key, reply)
  if reply and reply.err and string.sub(reply.err, 1, 9) ~= "WRONGTYPE" then return reply end
  return { err = "WRONGTYPE headgate: the key " .. key .. " holds a value that headgate did not write. Nothing was "
    .. "changed. Delete or move it, or choose another key or prefix." }
end

return M
