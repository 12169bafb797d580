-- Finds the name that a misspelled one is nearest to, for "Did you mean". Pure.
--
-- A name is near if so few letters are wrong, missing, superfluous or swapped with their neighbour that at least two
-- thirds of it are right.

local byte, floor, lower, min = string.byte, math.floor, string.lower, math.min

local M = {}

local MAX_LENGTH = 40

-- Returns how many letters have to be changed, added, removed or swapped with the next one.
local function distance(first, second)
  local rows = { [0] = {} }
  for j = 0, #second do rows[0][j] = j end
  for i = 1, #first do
    local row = { [0] = i }
    rows[i] = row
    for j = 1, #second do
      local same = byte(first, i) == byte(second, j)
      row[j] = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and byte(first, i) == byte(second, j - 1) and byte(first, i - 1) == byte(second, j) then
        row[j] = min(row[j], rows[i - 2][j - 2] + 1)
      end
    end
  end
  return rows[#first][#second]
end

-- Returns the nearest of a list of names; nil if none is near.
function M.nearest(name, names)
  local nearest, smallest
  if #name > MAX_LENGTH then return nil end
  for _, candidate in ipairs(names) do
    local edits = distance(lower(name), candidate)
    if edits <= floor(#candidate / 3) and (not smallest or edits < smallest) then
      nearest, smallest = candidate, edits
    end
  end
  return nearest
end

return M
