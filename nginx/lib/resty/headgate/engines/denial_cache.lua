-- The denial cache: this nginx repeats a refusal, without asking Redis again, while it certainly still holds. The twin
-- of engines/layers/denial_cache/engines.py in spirit; here all workers share one cache, in the shared dict.
--
--   0.0 s   take 3 of "key"   asked    refused, retry after 0.4 s
--   0.1 s   take 3, take 5    cached   refused, retry after 0.3 s
--   0.1 s   take 2            asked    less than what was refused: it might fit
--   0.4 s   take 3            asked    the refusal has expired
--
-- One cached refusal refuses the whole request: all live charges pass or none, and the others would not have been
-- charged either. They were not asked, so they have no outcome: outcomes[i] is nil, and the response omits them. Such
-- outcomes come with the note "unasked": they do not prove that Redis answers.
--
-- Laws (tests/nginx/engines/test_denial_cache.py):
--   - it never over-admits: the cache only refuses, every call that passes was allowed by the engine behind;
--   - it refuses units that another process has freed meanwhile for at most min(retry_after, 1 s);
--   - a refusal holds for costs at least as large as the refused one, and is aged by the time that has passed since;
--   - a refund by this nginx ends it, in all workers, even for a refusal that is on its way: a note of the instant
--     stays for a second, and no refusal that was requested before it is stored;
--   - only calls that were refused by their own limit are stored: not those that another rule rolled back, nor a peek;
--   - a rule with a lockout is always asked, because each of its refusals must be counted; only the lockout itself is
--     repeated, which counts nothing, unless a second rule with a lockout is in the request. Requests with such a rule,
--     or with a shadow, are otherwise asked;
--   - a rule that can be paused is always asked, because a pause may end by a reset;
--   - a limit that changes has other refusals: they are stored under its text;
--   - refusals evict nothing: where the dict is full, none is stored. A key that was never refused costs no entry.
--
-- The clock is read before asking, so a refusal ends here early rather than late. A request that passes costs one
-- dict:get for each charge. A refusal is 72 bytes: binary doubles, which need neither parsing nor a table; an
-- override's text follows.

local clock = require "resty.headgate.clock"
local ffi = require "ffi"

local M = {}

local MAX_REPEAT_US = 1000000
local ENTRY_TTL_S = 1 -- seconds

local VALID_UNTIL, SENT_AT, COST, ALLOWED, REMAINING, RETRY, RESET, DECIDED_AT, MARK = 0, 1, 2, 3, 4, 5, 6, 7, 8
local ENTRY_BYTES, REFUND_NOTE_BYTES = 9 * 8, 8
local CONST_DOUBLES = ffi.typeof("const double *")
local LOCKED, NEVER = -3, -1
local CACHED = { __index = { cached = true } } -- the metatable of outcomes from the cache: they are counted apart

local cast, text_of, now_us = ffi.cast, ffi.string, clock.monotonic_us
local sub = string.sub
local entry = ffi.new("double[9]")

local DenialCache = {}
DenialCache.__index = DenialCache

-- Wraps an engine. `inner`: an Engine. `dict`: a shared dict; our keys begin with d:.
function M.around(inner, dict) return setmetatable({ inner = inner, dict = dict }, DenialCache) end

-- Returns the key prefix of a bound limit's refusals. Those of a rule with a lockout are separate.
local function denial_prefix(bound_limit)
  local kind = bound_limit.options.lockout and "d:l:" or "d:"
  bound_limit.denial_prefix = kind .. bound_limit.limit.text .. ":" .. bound_limit.head
  return bound_limit.denial_prefix
end

-- Returns the outcome of a stored refusal as of now, if it holds for this cost.
local function decode_denial(text, cost, now)
  if #text < ENTRY_BYTES then return nil end
  local stored = cast(CONST_DOUBLES, text)
  if now >= stored[VALID_UNTIL] or cost < stored[COST] then return nil end
  local age_us = now - stored[SENT_AT]
  age_us = age_us - age_us % 1
  local retry, reset = stored[RETRY], stored[RESET] - age_us
  if retry ~= NEVER then
    retry = retry - age_us
    if retry < 1 then retry = 1 end
  end
  local outcome = {
    stored[ALLOWED], stored[REMAINING], retry, reset > 0 and reset or 0, 0, stored[DECIDED_AT] + age_us, stored[MARK],
  }
  if #text > ENTRY_BYTES then outcome[8] = sub(text, ENTRY_BYTES + 1) end
  return setmetatable(outcome, CACHED)
end

local function store_denial(self, charge, outcome, sent_at)
  local wait = outcome[3]
  if wait == NEVER or wait > MAX_REPEAT_US then wait = MAX_REPEAT_US end
  if wait <= 0 then return end
  local bound_limit = charge.bound_limit
  local name = (bound_limit.denial_prefix or denial_prefix(bound_limit)) .. charge.key
  local existing = self.dict:get(name)
  if existing and #existing == REFUND_NOTE_BYTES and cast(CONST_DOUBLES, existing)[0] >= sent_at then return end
  entry[VALID_UNTIL], entry[SENT_AT] = sent_at + wait, sent_at
  entry[COST] = outcome[1] == LOCKED and 1 or charge.cost
  entry[ALLOWED], entry[REMAINING], entry[RETRY], entry[RESET] = outcome[1], outcome[2], outcome[3], outcome[4]
  entry[DECIDED_AT], entry[MARK] = outcome[6], outcome[7]
  local text = text_of(entry, ENTRY_BYTES)
  if outcome[8] then text = text .. outcome[8] end
  self.dict:safe_set(name, text, ENTRY_TTL_S)
end

-- Stores an outcome that is a refusal by its own limit.
local function store_if_refused(self, charge, outcome, sent_at)
  if outcome and outcome[1] ~= 1 and charge.cost > 0
    and (outcome[1] == LOCKED or outcome[1] == 0 and not charge.bound_limit.options.lockout) then
    store_denial(self, charge, outcome, sent_at)
  end
end

-- Returns whether refusals of these charges may be repeated, and the options with a lockout among them.
local function repeatable(charges)
  local lockout_options
  for i = 1, #charges do
    local options = charges[i].bound_limit.options
    if options.shadow or options.pausable then return false end
    if options.lockout then
      if lockout_options and lockout_options ~= options then return false end
      lockout_options = options
    end
  end
  return true, lockout_options
end

-- Returns the outcome of a stored refusal of this charge that still holds.
local function find_denial(self, charge, lockout_options, now)
  local bound_limit = charge.bound_limit
  if lockout_options and bound_limit.options ~= lockout_options then return nil end
  local text = self.dict:get((bound_limit.denial_prefix or denial_prefix(bound_limit)) .. charge.key)
  return text and charge.cost > 0 and decode_denial(text, charge.cost, now)
end

-- Returns the first stored refusal of one of these charges, at its index; nil if there is none.
local function find_any_denial(self, charges, lockout_options, now)
  for i = 1, #charges do
    local outcome = find_denial(self, charges[i], lockout_options, now)
    if outcome then return { [i] = outcome } end
  end
end

-- Returns the outcomes of charges that are refused without asking, for callers with other work before Redis is asked.
function DenialCache:refused(charges)
  local is_repeatable, lockout_options = repeatable(charges)
  return is_repeatable and find_any_denial(self, charges, lockout_options, now_us()) or nil
end

function DenialCache:decide(charges, commit, deadline)
  local is_repeatable, lockout_options = repeatable(charges)
  if commit ~= 1 or not is_repeatable then return self.inner:decide(charges, commit, deadline) end
  local now = now_us()
  local denial = find_any_denial(self, charges, lockout_options, now)
  if denial then return denial, "unasked" end
  local outcomes, failure = self.inner:decide(charges, commit, deadline)
  if not outcomes then return nil, failure end
  for i = 1, #charges do store_if_refused(self, charges[i], outcomes[i], now) end
  return outcomes
end

-- Decides one charge.
function DenialCache:take(charge, deadline)
  local options, now = charge.bound_limit.options, now_us()
  local is_repeatable = not options.shadow and not options.pausable
  local outcome = is_repeatable and find_denial(self, charge, options.lockout and options, now)
  if outcome then return outcome, "unasked" end
  local failure
  outcome, failure = self.inner:take(charge, deadline)
  if not outcome then return nil, failure end
  if is_repeatable then store_if_refused(self, charge, outcome, now) end
  return outcome
end

-- Refunds a charge. Even a refund that fails may have been executed, so refusals end either way.
function DenialCache:refund(charge, outcome, deadline)
  local after, failure = self.inner:refund(charge, outcome, deadline)
  local bound_limit = charge.bound_limit
  entry[0] = now_us()
  local name = (bound_limit.denial_prefix or denial_prefix(bound_limit)) .. charge.key
  self.dict:safe_set(name, text_of(entry, REFUND_NOTE_BYTES), ENTRY_TTL_S)
  return after, failure
end

function DenialCache:acquire(charge, deadline) return self.inner:acquire(charge, deadline) end

function DenialCache:renew(charge, fence, deadline) return self.inner:renew(charge, fence, deadline) end

function DenialCache:release(charge, fence, deadline) return self.inner:release(charge, fence, deadline) end

return M
