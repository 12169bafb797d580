-- Functions in a row, as one function. Each is called where a loop would call it, but without a loop: LuaJIT compiles a
-- loop only if it runs a few times, gives up on one that mostly runs once, and with it on all that is around. What is
-- looked at for every request is a row of one or two, and known when the plate is compiled.
--
-- For the same reason the first of a list is written out, wherever most requests pass, and a loop begins with the
-- second. Those that meet one rule have no lists at all: a table that is made and forgotten within one piece of machine
-- code is never really made, but one that is put into another is.
--
-- Laws: `first` answers as the first does that answers anything true; `through` hands each what the one before it
-- answered, and is nil once one answers nil; an empty row answers nil, or what it was given.

local M = {}

local function nothing() return nil end

local function itself(value) return value end

local function first_from(row, at)
  local one = row[at]
  if at == #row then return one end
  local rest = first_from(row, at + 1)
  return function(value) return one(value) or rest(value) end
end

function M.first(row) return #row == 0 and nothing or first_from(row, 1) end

local function through_from(row, at)
  local one = row[at]
  if at == #row then return one end
  local rest = through_from(row, at + 1)
  return function(value)
    local after = one(value)
    if after == nil then return nil end
    return rest(after)
  end
end

function M.through(row) return #row == 0 and itself or through_from(row, 1) end

return M
