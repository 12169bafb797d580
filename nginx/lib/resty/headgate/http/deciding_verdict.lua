-- Chooses the verdict that decides a call, which the response describes. The twin of `most_restrictive` in
-- algorithms/decision.py. Pure.
--
-- A refusal comes before what passes. Of refusals the longest decides (a wait of -1 is never, the longest of all), of
-- what passes the one with the smallest share of its quota left; of equals the first.
--
-- Law (tests/nginx/http/test_deciding_verdict.py): it is Python's choice.

local M = {}

local NEVER, huge = -1, math.huge

local function wait_us(verdict)
  local us = verdict.outcome[3]
  return us == NEVER and huge or us
end

local function share_left(verdict)
  local outcome = verdict.outcome
  return outcome[2] / (outcome.current or verdict.limit.quota) -- of an adaptive limit: as it is now
end

local function precedes(verdict, other)
  local refuses, other_refuses = verdict.outcome[1] ~= 1, other.outcome[1] ~= 1
  if refuses ~= other_refuses then return refuses end
  if refuses then return wait_us(verdict) > wait_us(other) end
  return share_left(verdict) < share_left(other)
end

-- Returns the verdict that decides; nil if there is none. A verdict has an outcome and a limit.
function M.most_restrictive(verdicts)
  local deciding = verdicts[1]
  for index = 2, #verdicts do
    if precedes(verdicts[index], deciding) then deciding = verdicts[index] end
  end
  return deciding
end

return M
