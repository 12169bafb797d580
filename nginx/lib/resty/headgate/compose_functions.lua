-- Composes a list of functions into one function. Each is called where a loop would call it, but without a loop: LuaJIT
-- compiles a loop only if it runs a few times, gives up on one that mostly runs once, and with it on the trace around
-- it. The lists that are used for every request have one or two elements, and are known when the bundle is compiled.
--
-- For the same reason the first element of a list is written out wherever most requests pass, and a loop begins with
-- the second. Requests that meet one rule have no lists at all: LuaJIT never allocates a table that is created and
-- dropped within one trace, unless it is put into another table.
--
-- Laws: `first` returns the first true result; `pipeline` passes each function the result of the one before it, and
-- returns nil once one returns nil; an empty list returns nil, or its argument.

local M = {}

local function return_nil() return nil end

local function identity(value) return value end

local function first_from(functions, index)
  local current = functions[index]
  if index == #functions then return current end
  local following = first_from(functions, index + 1)
  return function(value) return current(value) or following(value) end
end

function M.first(functions) return #functions == 0 and return_nil or first_from(functions, 1) end

local function pipeline_from(functions, index)
  local current = functions[index]
  if index == #functions then return current end
  local following = pipeline_from(functions, index + 1)
  return function(value)
    local result = current(value)
    if result == nil then return nil end
    return following(result)
  end
end

function M.pipeline(functions) return #functions == 0 and identity or pipeline_from(functions, 1) end

return M
