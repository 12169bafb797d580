-- The name that a misspelled one is nearest to, for "Did you mean". Pure.
--
-- Near is: so few letters are wrong, missing, too many or swapped with their neighbour that at least two thirds of the
-- name are right.

local byte, floor, lower, min = string.byte, math.floor, string.lower, math.min

local M = {}

local MAX_LENGTH = 40

-- How many letters have to be changed, added, left out or swapped with the next one.
local function distance(one, other)
  local rows = { [0] = {} }
  for j = 0, #other do rows[0][j] = j end
  for i = 1, #one do
    local row = { [0] = i }
    rows[i] = row
    for j = 1, #other do
      local same = byte(one, i) == byte(other, j)
      row[j] = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and byte(one, i) == byte(other, j - 1) and byte(one, i - 1) == byte(other, j) then
        row[j] = min(row[j], rows[i - 2][j - 2] + 1)
      end
    end
  end
  return rows[#one][#other]
end

-- Of a list of names, the nearest one; nil if none is near.
function M.nearest(name, names)
  local found, least
  if #name > MAX_LENGTH then return nil end
  for _, known in ipairs(names) do
    local apart = distance(lower(name), known)
    if apart <= floor(#known / 3) and (not least or apart < least) then found, least = known, apart end
  end
  return found
end

return M
