-- The denial cache: this nginx repeats a refusal, without asking again, while it surely still stands. The twin of
-- engines/layers/denial_cache/engines.py in spirit; here all workers remember together, in the shared dict.
--
--   0.0 s   take 3 of "key"   asked    refused, retry after 0.4 s
--   0.1 s   take 3, take 5    memory   refused, retry after 0.3 s
--   0.1 s   take 2            asked    less than what was refused: it might fit
--   0.4 s   take 3            asked    the refusal has run out
--
-- One remembered refusal refuses the whole request: all live charges pass or none, and the others would not have been
-- charged either. They were not asked, so there are no facts here: answers[i] is nil, and nobody tells of them.
-- Such answers come with the word "unasked": they do not show that Redis answers.
--
-- Laws (tests/nginx/engines/test_denial_cache.py):
--   - it never over-admits: from memory come refusals only, whatever passes was passed by the engine behind;
--   - it refuses what somebody else has freed meanwhile for at most min(retry_after, 1 s);
--   - a refusal holds for costs at least as large as the refused one, and is aged by the time that has passed since;
--   - what this nginx gives back ends it, in all workers, even for a refusal that was on its way: a note of the instant
--     stays for a second, and no refusal that was asked for before it is kept;
--   - only what was refused by itself is remembered: not what another rule rolled back, nor a peek;
--   - a rule with a lockout is always asked, because each of its refusals must be counted; only that it is locked out
--     is repeated, which counts nothing, unless a second rule with a lockout is in the request. Whatever comes with a
--     rule with a lockout, or with something aside, is asked;
--   - a limit that changes has other refusals: they are filed under its text;
--   - refusals displace nothing: where the dict is full, none is remembered. A key that was never refused costs none.
--
-- The clock is read before asking, so a refusal ends here early rather than late. On the way of a request that passes
-- stands one dict:get for each charge. A refusal is 72 bytes: numbers as the machine has them, as neither a text to be
-- read nor a table is; an override's text follows.

local clock = require "resty.headgate.clock"
local ffi = require "ffi"

local M = {}

local LONGEST_US = 1000000
local LIFE = 1 -- seconds that the dict keeps anything of ours

local UNTIL, ASKED, COST, ALLOWED, REMAINING, RETRY, RESET, AT, MARK = 0, 1, 2, 3, 4, 5, 6, 7, 8
local BYTES, NOTE_BYTES = 9 * 8, 8
local READ = ffi.typeof("const double *")
local LOCKED, NEVER = -3, -1

local cast, text_of, now_us = ffi.cast, ffi.string, clock.fine_us
local sub = string.sub
local packed = ffi.new("double[9]")

local Memo = {}
Memo.__index = Memo

-- `inner`: an Engine. `dict`: a shared dict; ours is what begins with d:.
function M.around(inner, dict) return setmetatable({ inner = inner, dict = dict }, Memo) end

-- What the refusals of a hand are filed under, before the key. What others may repeat, a rule with a lockout may not.
local function filed(hand)
  local kind = hand.terms.lockout and "d:l:" or "d:"
  hand.memo = kind .. hand.limit.text .. ":" .. hand.head
  return hand.memo
end

-- The facts of a refusal as they stand now, if it holds for this cost.
local function recalled(text, cost, now)
  if #text < BYTES then return nil end
  local kept = cast(READ, text)
  if now >= kept[UNTIL] or cost < kept[COST] then return nil end
  local by = now - kept[ASKED]
  by = by - by % 1
  local retry, reset = kept[RETRY], kept[RESET] - by
  if retry ~= NEVER then
    retry = retry - by
    if retry < 1 then retry = 1 end
  end
  local facts = { kept[ALLOWED], kept[REMAINING], retry, reset > 0 and reset or 0, 0, kept[AT] + by, kept[MARK] }
  if #text > BYTES then facts[8] = sub(text, BYTES + 1) end
  return facts
end

local function remember(self, charge, facts, asked)
  local wait = facts[3]
  if wait == NEVER or wait > LONGEST_US then wait = LONGEST_US end
  if wait <= 0 then return end
  local hand = charge.hand
  local name = (hand.memo or filed(hand)) .. charge.key
  local before = self.dict:get(name)
  if before and #before == NOTE_BYTES and cast(READ, before)[0] >= asked then return end
  packed[UNTIL], packed[ASKED] = asked + wait, asked
  packed[COST] = facts[1] == LOCKED and 1 or charge.cost
  packed[ALLOWED], packed[REMAINING], packed[RETRY], packed[RESET] = facts[1], facts[2], facts[3], facts[4]
  packed[AT], packed[MARK] = facts[6], facts[7]
  local text = text_of(packed, BYTES)
  if facts[8] then text = text .. facts[8] end
  self.dict:safe_set(name, text, LIFE)
end

-- Keeps an answer that is a refusal of its own.
local function learn(self, charge, facts, asked)
  if facts and facts[1] ~= 1 and charge.cost > 0
    and (facts[1] == LOCKED or facts[1] == 0 and not charge.hand.terms.lockout) then
    remember(self, charge, facts, asked)
  end
end

-- Whether something can be recalled for these charges, and the terms with a lockout among them.
local function terms_of(charges)
  local locks
  for i = 1, #charges do
    local terms = charges[i].hand.terms
    if terms.aside then return false end
    if terms.lockout then
      if locks and locks ~= terms then return false end
      locks = terms
    end
  end
  return true, locks
end

-- The facts of a refusal of this charge that still stands.
local function recall(self, charge, locks, now)
  local hand = charge.hand
  if locks and hand.terms ~= locks then return nil end
  local text = self.dict:get((hand.memo or filed(hand)) .. charge.key)
  return text and charge.cost > 0 and recalled(text, charge.cost, now)
end

-- The first refusal of one of these charges that still stands, in its place; nil if none does.
local function recall_any(self, charges, locks, now)
  for i = 1, #charges do
    local facts = recall(self, charges[i], locks, now)
    if facts then return { [i] = facts } end
  end
end

-- The same for who has more to do before Redis is asked.
function Memo:refused(charges)
  local may, locks = terms_of(charges)
  return may and recall_any(self, charges, locks, now_us()) or nil
end

function Memo:decide(charges, commit, deadline)
  local may, locks = terms_of(charges)
  if commit ~= 1 or not may then return self.inner:decide(charges, commit, deadline) end
  local now = now_us()
  local known = recall_any(self, charges, locks, now)
  if known then return known, "unasked" end
  local answers, trouble = self.inner:decide(charges, commit, deadline)
  if not answers then return nil, trouble end
  for i = 1, #charges do learn(self, charges[i], answers[i], now) end
  return answers
end

-- The same of one charge.
function Memo:take(charge, deadline)
  local terms, now = charge.hand.terms, now_us()
  local facts = not terms.aside and recall(self, charge, terms.lockout and terms, now)
  if facts then return facts, "unasked" end
  local trouble
  facts, trouble = self.inner:take(charge, deadline)
  if not facts then return nil, trouble end
  if not terms.aside then learn(self, charge, facts, now) end
  return facts
end

-- Even where it fails, it may have been done.
function Memo:refund(charge, facts, deadline)
  local after, trouble = self.inner:refund(charge, facts, deadline)
  local hand = charge.hand
  packed[0] = now_us()
  self.dict:safe_set((hand.memo or filed(hand)) .. charge.key, text_of(packed, NOTE_BYTES), LIFE)
  return after, trouble
end

function Memo:acquire(charge, deadline) return self.inner:acquire(charge, deadline) end

function Memo:renew(charge, fence, deadline) return self.inner:renew(charge, fence, deadline) end

function Memo:release(charge, fence, deadline) return self.inner:release(charge, fence, deadline) end

return M
