-- Computes the quota and window of a limit from its numbers, for limits that are in no bundle, such as shares. Each
-- algorithm computes its own (`quota` in lua/algorithms), as the properties of its Limit do in Python.
--
-- Laws (tests/nginx/engines/test_limit_share_parity.py):
--   - the results are what a bundle says of the same limit;
--   - window is nil for slots, and per_second where it is no whole number.

local limit_arithmetic = require "resty.headgate.limit_arithmetic"

local M = {}

local MAX_FIELD_INTEGER = 999999999999999 -- the largest integer of a structured field

-- Returns the limit, with its quota, window, per_second, fresh and interval_us.
function M.complete(limit)
  local model = require("resty.headgate.algorithms." .. limit.algorithm)
  for name, value in pairs(model.quota(model.limit(limit.numbers, 1), limit_arithmetic, limit.calendar)) do
    limit[name] = value
  end
  limit.quota = math.min(MAX_FIELD_INTEGER, limit.quota)
  limit.per_second = limit.per_second and math.min(MAX_FIELD_INTEGER, limit.per_second)
  return limit
end

return M
