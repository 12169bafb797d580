-- Limits of single keys: an override decides in place of its rule's limit, so it is what a response tells of.
--
-- A script says by which override it decided, in words; what these words mean (quota, window) a plate cannot know. So a
-- worker that meets them for the first time reads the override itself, once, and remembers it.
--
-- Laws (tests/nginx/test_own.py): the header fields of a key with an override are those that Python writes, whoever
-- refuses it, Redis or the memo; where the override is gone meanwhile, or nobody answers, they tell of the rule.

local quota = require "resty.headgate.quota"

local M = {}

local MOST = 1000 -- overrides of one limit that a worker remembers

local Own = {}
Own.__index = Own

-- `engine`: the Redis engine; without one there are no overrides.
function M.of(engine) return setmetatable({ engine = engine }, Own) end

local function read(self, charge, text)
  local limit = charge.hand.limit
  local numbers = self.engine:override(charge, text, charge.hand.terms.deadline)
  if not numbers then return nil end
  return quota.complete { algorithm = limit.algorithm, text = text, numbers = numbers, calendar = limit.calendar }
end

-- Puts the limit of this text, by which the charge was decided, on the charge.
function Own:note(charge, text)
  local hand = charge.hand
  if not hand.own or hand.own_count >= MOST then hand.own, hand.own_count = {}, 0 end
  local limit = hand.own[text]
  if not limit then
    limit = read(self, charge, text)
    if not limit then return end
    hand.own[text], hand.own_count = limit, hand.own_count + 1
  end
  charge.limit = limit
end

return M
