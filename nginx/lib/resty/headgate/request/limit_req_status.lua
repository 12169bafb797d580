-- The status of a request for the access log, in the words of nginx's $limit_req_status.
--
--   PASSED              no rule refused or delayed it, and no shadow would have
--   DELAYED             it passes later
--   REJECTED            it was refused
--   DELAYED_DRY_RUN     it passed at once; a shadow or candidate would have delayed it
--   REJECTED_DRY_RUN    it passed at once; a shadow or candidate would have refused it
--
-- A dry run also has names: that of the rule for a shadow, and that of the rule with ~ behind it for a candidate, as
-- its counts are named.
--
-- Laws (tests/nginx/http/test_refusal_body.py): what happened takes precedence over what would have, and a refusal over
-- a delay. So the status of a dry run appears only if no live rule refused or delayed the request. The names are
-- written in any case: of the rules that would have refused it, or if none would, of those that would have delayed it,
-- each once.

local M = {}

-- The Outcome of a shadow that refuses without asking, because its key is missing.
M.DENIED = { 0, 0, -1, 0, 0, 0, 0 }

-- Returns the status. `shadow_verdicts`: the Outcomes of shadows and candidates in a list; nil if there are none.
function M.status(allowed, delayed, shadow_verdicts)
  if not allowed then return "REJECTED" end
  if delayed then return "DELAYED" end
  local status = "PASSED"
  for i = 1, shadow_verdicts and #shadow_verdicts or 0 do
    local outcome = shadow_verdicts[i]
    if outcome[1] ~= 1 then return "REJECTED_DRY_RUN" end
    if outcome[5] > 0 then status = "DELAYED_DRY_RUN" end
  end
  return status
end

-- Appends a name, unless it is the last one already: the limits of a rule follow each other.
local function add_name(names, name)
  if not names or names == name then return name end
  return string.sub(names, -#name - 1) == "," .. name and names or names .. "," .. name
end

-- Returns the names of the rules that would have refused or delayed the request; nil if none would.
function M.dry_run(shadow_verdicts, names)
  local refused_by, delayed_by
  for i = 1, #shadow_verdicts do
    local outcome, name = shadow_verdicts[i], names[i]
    if outcome[1] ~= 1 then
      refused_by = add_name(refused_by, name)
    elseif outcome[5] > 0 then
      delayed_by = add_name(delayed_by, name)
    end
  end
  return refused_by or delayed_by
end

return M
