-- How fast a flooded limit should be asked for, so that all of it is used, by anybody, at any time. Pure: it is told
-- what time it is. shed.lua puts it to work.
--
-- If a request in a flood of `demand` units a second may ask with the chance wanted / demand, Redis is asked for
-- `wanted` units a second, however large the flood is, and nobody can do anything about his chance. So the whole
-- question is what to want. In units a second, for N nginx that share a limit of `rate` units a second:
--
-- A fixed window with r units and t seconds left: wanted = r / t / N. It is as if every unit had drawn an instant of
-- the window at which it is given away, each instant as likely as any other: units go evenly from the first moment to
-- the last, a unit that is still there in the last moment is wanted by all, and each is asked for once. Between two
-- answers others take their part: of r at the last answer there are, on average, r * (1 - (N-1)/N * (time since) /
-- (time left then)).
--
-- A bucket of b units with k in it: wanted = k * rate / K / N. Units come at the rate and each is taken after K / rate
-- seconds on average, so about K lie there. They are lost if b is reached, as calls are by a telephone exchange with b
-- lines (Erlang): less than 1 in 10,000 with K = b/4 from b = 32 on, and K = b*b/128 from b = 8 on. More units that lie
-- there mean a chance that changes less with every unit taken. Smaller buckets need a smaller K: 0.01 for b = 1, where
-- whoever comes next takes the unit. Since the last answer the bucket has filled by this nginx's part of the rate.
--
-- A small bucket (b < 8) has no room for such parts. Each nginx asks for each unit when it must be there, and one of
-- them gets it: N questions for a unit. More than two nginx ask for 1 / N of the units each: fewer than three questions
-- for a unit, but of b = 1 a quarter of the units may be lost. So it is where units come faster than answers do.
--
-- A sliding window, or log: units come back a period after they were taken, so whoever takes them at once repeats a
-- burst for ever. wanted = 1.005 * rate / N, evenly: a credit of at most 2 units grows at this rate, and whoever comes
-- about then spends it. What lies there drains by itself, since `rate` for a period is all.
--
-- N is at most the number of members. Not all of them have such a demand: some are Python processes, and a reserve has
-- none. So N is learned from the answers: what has gone between two of them, by what went to us. (Of a sliding window
-- it cannot be seen. There N shrinks where no answer says for a period that the limit is used up, and grows otherwise.)
--
-- Only limits that come back within a minute are paced. Who is told to come tomorrow has no use for a fair chance now.
--
-- Laws (tests/nginx/engines/test_shed_rate.py by simulation, tests/nginx/engines/test_load_shedding.py by floods):
-- Redis is asked for at most 3 times the limit; at least 98 % of it are used; every tenth of a window or second is
-- given as much as any other.
--
-- Times are microseconds, rates units per microsecond. A state is thirteen numbers from 0 on, wherever they are kept.

local M = {}

local LEFT, AT, UPTO, DEMAND, MARK, MARK_AT, SHARERS, DRY_AT = 0, 1, 2, 3, 4, 5, 6, 7
-- How many members there are; what the last answer left, and when (of a window: its end); how much has gone, and how
-- much of it to us.
local COUNT, SEEN, SEEN_AT, GONE, MINE = 8, 9, 10, 11, 12
M.DEMAND, M.MARK, M.MARK_AT, M.NUMBERS = DEMAND, MARK, MARK_AT, 13

local LONGEST_US = 60000000 -- in which a limit comes back
local BELIEVED_US = 1000000 -- that an answer is believed, or two units' time if that is longer
local ROOMY, LARGE = 8, 32 -- buckets from these sizes on
local LYING = { 0.01, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5 } -- K of smaller ones
local FAST = 4 -- how much faster than it grows a credit is spent
local CREDIT = 2
local OVER = 1.005 -- of a sliding window
local USED_UP = 0.02 -- of the limit left: that is all used
local MORE, FEWER = 0.05, 0.2 -- sharers of a sliding window, after a period in which it was used up, or was not
local STEP_US = 100000 -- how often that is looked at
local FIRST, MEMORY = 1, 1024 -- units of ours by which sharers are guessed at first, and that are remembered

local floor, min, max = math.floor, math.min, math.max

local window, bucket, sliding = {}, {}, {}

local makers = {}

function makers.fixed_window(numbers)
  local amount, period = tonumber(numbers[1]), tonumber(numbers[2])
  if period == 0 then return nil end -- a calendar's: a day, or longer
  return { kind = window, rate = amount / period, amount = amount, period = period }
end

local function bucket_of(rate, burst, exact)
  return {
    kind = bucket, rate = rate, amount = burst, period = burst / rate, exact = exact, roomy = burst >= ROOMY,
    hurry = rate / (burst >= ROOMY and burst * min(burst, LARGE) / (4 * LARGE) or LYING[max(1, floor(burst))]),
  }
end

function makers.token_bucket(numbers)
  return bucket_of(tonumber(numbers[1]) / tonumber(numbers[2]), tonumber(numbers[3]), true)
end

function makers.leaky_bucket(numbers)
  return bucket_of(tonumber(numbers[1]) / 1e9, tonumber(numbers[2]) / 1000 + 1)
end

function makers.smooth(numbers)
  return bucket_of(tonumber(numbers[1]) / 1e6, 1) -- one unit passes at once; what is saved up comes on top
end

local function sliding_of(amount, period)
  return { kind = sliding, rate = amount / period, amount = amount, period = period }
end

function makers.sliding_window(numbers)
  return sliding_of(tonumber(numbers[1]), tonumber(numbers[2]) * tonumber(numbers[3]))
end

function makers.sliding_log(numbers) return sliding_of(tonumber(numbers[1]), tonumber(numbers[2])) end

-- How a limit is paced; nil if it is not.
function M.plan(limit)
  local make = makers[limit.algorithm]
  local plan = make and make(limit.numbers)
  if not plan or plan.period > LONGEST_US then return nil end
  plan.believed = max(BELIEVED_US, 2 / plan.rate)
  return plan
end

-- Units that may be there, and units per microsecond that should be asked for.
function window.wanted(plan, state, now)
  local left, at, upto = state[LEFT], state[AT], state[UPTO]
  if now >= upto then
    local begun = floor((now - upto) / plan.period) * plan.period + upto
    left, at, upto = plan.amount, begun, begun + plan.period
  end
  local sharers, before, now_left = state[SHARERS], upto - at, upto - now
  local likely = left * (now_left + (before - now_left) / sharers) / before
  return left, likely / now_left / sharers, likely, upto
end

-- Notes that so many units have gone since the last answer, and how many of them to us.
local function note(state, gone, cost, facts)
  if state[SEEN_AT] == 0 then return end -- this is the first
  state[GONE] = state[GONE] + gone
  if facts[1] == 1 then state[MINE] = state[MINE] + cost end
  if state[MINE] > MEMORY then state[GONE], state[MINE] = state[GONE] / 2, state[MINE] / 2 end
end

function window.learn(plan, state, cost, facts, asked)
  local left, upto = facts[2], asked + facts[4]
  local same = upto - state[SEEN_AT] < plan.period / 2 -- window as that of the last answer
  note(state, (same and state[SEEN] or plan.amount) - left, cost, facts)
  state[LEFT], state[AT], state[SEEN], state[SEEN_AT] = left, asked, left, upto
  if facts[4] > 0 then state[UPTO] = upto end
end

function bucket.wanted(plan, state, now)
  local sharers, growth = state[SHARERS], plan.rate
  if plan.roomy then growth = growth / sharers elseif sharers > 2 then growth = growth / sharers end
  local left = min(plan.amount, state[LEFT] + growth * (now - state[AT]))
  return left, left * plan.hurry / (plan.roomy and sharers or 1), left, 0
end

local function in_bucket(plan, cost, facts)
  if plan.exact then return plan.amount - facts[4] * plan.rate end
  if facts[1] == 1 or facts[3] < 0 then return facts[2] end
  return cost - facts[3] * plan.rate
end

function bucket.learn(plan, state, cost, facts, asked, answered)
  local left, at = in_bucket(plan, cost, facts), (asked + answered) / 2
  local full = state[SEEN] + plan.rate * (at - state[SEEN_AT])
  note(state, min(full, plan.amount) - left, cost, facts)
  state[SEEN], state[SEEN_AT], state[LEFT] = left, at, left
  state[AT] = plan.roomy and at or asked -- of a small one the next unit is asked for while it is on its way
end

local function growth_of(plan, state) return plan.rate * OVER / state[SHARERS] end

function sliding.wanted(plan, state, now, cost)
  local growth = growth_of(plan, state)
  local left = min(max(CREDIT, cost + 1), state[LEFT] + growth * (now - state[AT]))
  return left, left * growth * FAST, left, 0
end

function sliding.learn(plan, state, cost, facts, asked, answered)
  if facts[1] == 1 then
    if facts[2] <= USED_UP * plan.amount then state[DRY_AT] = answered end
    return
  end
  state[DRY_AT] = answered
  if facts[3] >= 0 then
    state[LEFT], state[AT] = cost - facts[3] * growth_of(plan, state), (asked + answered) / 2
  end
end

-- As many as would take equal parts, rounded up: whoever thinks that there are fewer takes more, and would be right.
local function by_what_has_gone(_, state, count)
  return max(1, min(count, floor(state[GONE] / state[MINE] + 0.9)))
end

window.sharers, bucket.sharers = by_what_has_gone, by_what_has_gone

function sliding.sharers(plan, state, count, now)
  local used_up = now - state[DRY_AT] <= plan.period
  local factor = 1 + (used_up and MORE or -FEWER) * min(1, STEP_US / plan.period)
  return max(1, min(count, state[SHARERS] * factor))
end

-- Among how many the limit is shared: at most so many. To be called about ten times a second.
function M.share(plan, state, count, now)
  state[SHARERS], state[COUNT] = plan.kind.sharers(plan, state, count, now), count
end

-- A state of which nothing is known but that it is now, and shared by so many.
function M.begin(state, now, count)
  for place = 0, M.NUMBERS - 1 do state[place] = 0 end
  state[AT], state[MARK_AT], state[DRY_AT], state[SHARERS], state[COUNT] = now, now, now, count, count
  state[GONE], state[MINE] = FIRST * count, FIRST
end

-- The chance with which a request of this cost may ask: from 0 to 1, or more.
function M.chance(plan, state, now, cost)
  if now - state[AT] > plan.believed then return 1 end
  local left, wanted = plan.kind.wanted(plan, state, now, cost)
  if left < cost then return 0 end
  return wanted / state[DEMAND]
end

-- It asks.
function M.spend(plan, state, now, cost)
  local _, _, left, upto = plan.kind.wanted(plan, state, now, cost)
  state[LEFT], state[AT], state[UPTO] = left - cost, now, upto
end

-- An answer to such a question, which was asked and answered at these instants.
function M.learn(plan, state, cost, facts, asked, answered)
  plan.kind.learn(plan, state, cost, facts, asked, answered)
end

-- Whether the demand at this nginx is far above its part of the limit.
function M.flooded(plan, state, least)
  local demand = state[DEMAND]
  return demand > least and demand > 2 * plan.rate / state[COUNT]
end

-- Microseconds until the limit is as if never used, at the latest.
function M.reset(plan, state, now)
  local upto = state[UPTO]
  if upto > now then return floor(upto - now) end
  return floor(plan.period)
end

return M
