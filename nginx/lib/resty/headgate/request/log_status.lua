-- What became of a request in nginx's own words, for the access log: those of $limit_req_status.
--
--   PASSED              nothing was in its way, and nothing would have been
--   DELAYED             it passes later
--   REJECTED            it was refused
--   DELAYED_DRY_RUN     it passed at once; what was decided aside would have delayed it
--   REJECTED_DRY_RUN    it passed at once; what was decided aside would have refused it
--
-- Of a dry run the names are told, too: the rule's of a shadow, and the rule's with ~ behind it of a candidate, as its
-- counts are named.
--
-- Laws (tests/nginx/http/test_refusal_body.py): what happened comes before what would have, and a refusal before a
-- delay. So the words of a dry run are said only if nothing live refused or delayed the request. The names are told in
-- any case: those that would have refused it, or if none would, those that would have delayed it, each rule's once.

local M = {}

-- Outcome of a shadow that refuses without being asked, because its key is missing.
M.DENIED = { 0, 0, -1, 0, 0, 0, 0 }

-- `asides`: the Outcome of what was decided aside, in a list; nil if nothing was.
function M.status(allowed, delayed, asides)
  if not allowed then return "REJECTED" end
  if delayed then return "DELAYED" end
  local word = "PASSED"
  for i = 1, asides and #asides or 0 do
    local facts = asides[i]
    if facts[1] ~= 1 then return "REJECTED_DRY_RUN" end
    if facts[5] > 0 then word = "DELAYED_DRY_RUN" end
  end
  return word
end

-- The names with this one behind them, unless it stands there: the limits of a rule follow each other.
local function joined(names, name)
  if not names or names == name then return name end
  return string.sub(names, -#name - 1) == "," .. name and names or names .. "," .. name
end

-- The names of what would have refused or delayed the request; nil if nothing would. `names`: of the asides.
function M.dry_run(asides, names)
  local refusing, delaying
  for i = 1, #asides do
    local facts, name = asides[i], names[i]
    if facts[1] ~= 1 then
      refusing = joined(refusing, name)
    elseif facts[5] > 0 then
      delaying = joined(delaying, name)
    end
  end
  return refusing or delaying
end

return M
