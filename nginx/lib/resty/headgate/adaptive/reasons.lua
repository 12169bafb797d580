-- The reasons for which an adaptive limit is what it is, in the words of Python. They are stored as numbers: a new one
-- goes to the end.

local M = {}

M.TEXTS = {
  "start", "changed settings", "no answer", "dropped", "slow, not full", "nearly full", "not full", "strained",
  "slow once", "queueing", "few drops", "explore", "verify", "short queue", "random burst", "no queue", "changed",
  "slower service", "verified", "slower once", "below drops", "above the target", "at the target", "not used",
  "below the target", "no calls",
}

M.NUMBERS = {}
for number, text in ipairs(M.TEXTS) do M.NUMBERS[text] = number end

return M
