-- Reads the limits of single keys: an override decides in place of its rule's limit, so it is what a response
-- describes.
--
-- A script returns the text of the override that decided. A bundle cannot contain its quota and window, so a worker
-- that meets a text for the first time reads the override itself, once, and caches it.
--
-- Laws (tests/nginx/request/test_override_info.py):
--   - the header fields of a key with an override are those that Python writes, whichever engine or cache refuses it;
--   - where the override was deleted meanwhile, or Redis does not answer, they describe the rule's limit;
--   - after a failed read, the next attempt is a second later.

local now = require("resty.headgate.clock").now
local limit_quota = require "resty.headgate.limit_quota"
local memoize = require "resty.headgate.memoize"

local M = {}

local RETRY_PAUSE_S = 1 -- after a failed read

local OverrideInfo = {}
OverrideInfo.__index = OverrideInfo

-- `engine`: the Redis engine; without one there are no overrides.
function M.new(engine) return setmetatable({ engine = engine, retry_at = 0 }, OverrideInfo) end

local function read_override(self, charge, text)
  if now() < self.retry_at then return nil end
  local limit = charge.bound_limit.limit
  local numbers = self.engine:override(charge, text, charge.bound_limit.options.deadline)
  if numbers == nil then self.retry_at = now() + RETRY_PAUSE_S end
  if not numbers then return nil end
  return limit_quota.complete { algorithm = limit.algorithm, text = text, numbers = numbers, calendar = limit.calendar }
end

-- Sets the charge's limit to the override of this text, which decided the charge.
function OverrideInfo:note(charge, text)
  local bound_limit = charge.bound_limit
  if not bound_limit.override_of then
    bound_limit.override_of = memoize(function(override_text, for_charge)
      return read_override(self, for_charge, override_text)
    end)
  end
  charge.limit = bound_limit.override_of(text, charge) or charge.limit
end

return M
