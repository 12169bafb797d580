-- Limits of single keys: an override decides in place of its rule's limit, so it is what a response tells of.
--
-- A script says by which override it decided, in words; what these words mean (quota, window) a plate cannot know. So a
-- worker that meets them for the first time reads the override itself, once, and remembers it.
--
-- Laws (tests/nginx/request/test_override_info.py):
--   - the header fields of a key with an override are those that Python writes, whoever refuses it;
--   - where the override is gone meanwhile, or nobody answers, they tell of the rule's limit;
--   - who got no answer asks again a second later.

local now = require("resty.headgate.clock").now
local quota = require "resty.headgate.limit_quota"
local remembering = require "resty.headgate.memoize"

local M = {}

local PAUSE = 1 -- seconds in which nobody is asked, after no answer

local Own = {}
Own.__index = Own

-- `engine`: the Redis engine; without one there are no overrides.
function M.of(engine) return setmetatable({ engine = engine, again_at = 0 }, Own) end

local function read(self, charge, text)
  if now() < self.again_at then return nil end
  local limit = charge.hand.limit
  local numbers = self.engine:override(charge, text, charge.hand.terms.deadline)
  if numbers == nil then self.again_at = now() + PAUSE end
  if not numbers then return nil end
  return quota.complete { algorithm = limit.algorithm, text = text, numbers = numbers, calendar = limit.calendar }
end

-- Puts the limit of this text, by which the charge was decided, on the charge.
function Own:note(charge, text)
  local hand = charge.hand
  if not hand.own then
    hand.own = remembering(function(said, asking) return read(self, asking, said) end)
  end
  charge.limit = hand.own(text, charge) or charge.limit
end

return M
