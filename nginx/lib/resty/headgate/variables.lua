-- What a request is told to other modules of nginx: $headgate_status, $headgate_rule, $headgate_remaining.
--
-- A variable can be written only if the configuration has it and uses it: a map, and a log_format. Which of them can,
-- is found out once. A variable that was written stays with its request, over internal redirects too: so the status
-- also tells that a request was decided.

local M = {}

local var, pcall = ngx.var, pcall

local writable = {}

local function put(name, value) var[name] = value end

function M.write(name, value)
  local can = writable[name]
  if can then
    var[name] = value
  elseif can == nil then
    writable[name] = pcall(put, name, value)
  end
end

-- What became of the current request, "" if nothing yet; nil if the variable cannot tell.
function M.status()
  if not writable.headgate_status then return nil end
  return var.headgate_status
end

return M
