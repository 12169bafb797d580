-- Describes the limits of single keys: an override decides in place of its rule's limit, so it is what a response
-- describes. The script returns the override that decided with the decision; each is parsed once.
--
-- Law (tests/nginx/request/test_override_info.py): the header fields of a key with an override are those that Python
-- writes, whichever engine or cache refuses it.

local limit_quota = require "resty.headgate.limit_quota"
local memoize = require "resty.headgate.memoize"

local M = {}

local OverrideInfo = {}
OverrideInfo.__index = OverrideInfo

-- `engine`: the Redis engine; without one there are no overrides.
function M.new(engine) return setmetatable({ engine = engine }, OverrideInfo) end

-- Sets the charge's limit to the override that decided it; `line` is the eighth element of its outcome.
function OverrideInfo:note(charge, line)
  local bound_limit = charge.bound_limit
  if not bound_limit.override_of then
    local limit = bound_limit.limit
    bound_limit.override_of = memoize(function(override_line)
      local numbers, text = self.engine:override(limit, override_line)
      return limit_quota.complete {
        algorithm = limit.algorithm, text = text, numbers = numbers, calendar = limit.calendar,
      }
    end)
  end
  charge.limit = bound_limit.override_of(line)
end

return M
