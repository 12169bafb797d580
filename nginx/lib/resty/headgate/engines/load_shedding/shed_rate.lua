-- Computes how fast to request units of a flooded limit, so that all of it is used, with the same chance for every
-- client at any time. Pure: the caller passes the time. load_shedding.lua uses it.
--
-- If a request in a flood of `demand` units a second may ask with the probability request_rate / demand, Redis is asked
-- for `request_rate` units a second, however large the flood is, and no client can improve its chance. So it remains to
-- choose request_rate. In units a second, for N nginx that share a limit of `rate` units a second:
--
-- A fixed window with r units and t seconds left: request_rate = r / t / N. It is as if every unit had drawn an instant
-- of the window at which it is given away, each instant as likely as any other: units go evenly from the first moment
-- to the last, a unit that is still there in the last moment is requested by all, and each is requested once. Between
-- two replies others take their part: of r at the last reply there are, on average, r * (1 - (N-1)/N * (time since) /
-- (time left then)).
--
-- A bucket of b units with k in it: request_rate = k * rate / K / N. Units come at the rate and each is taken after K /
-- rate seconds on average, so about K lie there. They are lost if b is reached, as calls are in a telephone exchange
-- with b lines (Erlang): less than 1 in 10,000 with K = b/4 from b = 32 on, and K = b*b/128 from b = 8 on. More units
-- that lie there mean a chance that changes less with every unit taken. Smaller buckets need a smaller K: 0.01 for b =
-- 1, where the next request takes the unit. Since the last reply the bucket has filled by this nginx's part of the
-- rate.
--
-- A small bucket (b < 8) has no room for such parts. Each nginx requests each unit when it must be there, and one of
-- them gets it: N requests for a unit. More than two nginx request 1 / N of the units each: fewer than three requests
-- for a unit, but of b = 1 a quarter of the units may be lost. The same happens where units come faster than replies
-- do.
--
-- A sliding window, or log: units come back a period after they were taken, so taking them at once would repeat a burst
-- for ever. request_rate = 1.005 * rate / N, evenly: a credit of at most 2 units grows at this rate, and the requests
-- that come then spend it. Unused units drain by themselves, since `rate` for a period is all.
--
-- N is at most the number of members. Not all of them have such a demand: some are Python processes, and a reserve has
-- none. So N is estimated from the replies: the units that have gone between two of them, divided by those that went to
-- us. (Of a sliding window it cannot be observed. There N shrinks if for a period no reply says that the limit is used
-- up, and grows otherwise.)
--
-- Only limits that refill within a minute are shed. A client that has to come back tomorrow has no use for a fair
-- chance now.
--
-- Laws (tests/nginx/engines/test_shed_rate.py by simulation, tests/nginx/engines/test_load_shedding.py by floods):
-- Redis is asked for at most 3 times the limit; at least 98 % of it are used; every tenth of a window or second is
-- given as much as any other.
--
-- Times are microseconds, rates units per microsecond. A state is thirteen numbers from 0 on, wherever they are kept.

local M = {}

-- Indexes of a state.
local AVAILABLE, AVAILABLE_AT, WINDOW_END, DEMAND = 0, 1, 2, 3
local DEMAND_MARK, DEMAND_MARK_AT, SHARERS, EXHAUSTED_AT = 4, 5, 6, 7
-- The number of members; the remaining units of the last reply, and when (of a window: its end); how many units have
-- gone, and how many of them to us.
local MEMBER_COUNT, LAST_AVAILABLE, LAST_SEEN_AT, UNITS_GONE, UNITS_OURS = 8, 9, 10, 11, 12
M.DEMAND, M.DEMAND_MARK, M.DEMAND_MARK_AT, M.STATE_SIZE = DEMAND, DEMAND_MARK, DEMAND_MARK_AT, 13

local MAX_PERIOD_US = 60000000 -- of a limit that is shed
local TRUST_US = 1000000 -- of a reply, or two units' time if that is longer
local ROOMY_BURST, LARGE_BURST = 8, 32 -- buckets from these sizes on
local SMALL_BUCKET_LEVEL = { 0.01, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5 } -- K of smaller ones
local CREDIT_SPEEDUP = 4 -- how much faster than it grows a credit is spent
local MAX_CREDIT = 2
local SLIDING_OVERSHOOT = 1.005 -- of a sliding window
local EXHAUSTED_SHARE = 0.02 -- of the limit left: it is used up
-- Change of the sharers of a sliding window after a period in which it was used up, or was not.
local SHARERS_GROWTH, SHARERS_SHRINK = 0.05, 0.2
local UPDATE_INTERVAL_US = 100000 -- how often sharers are updated
local INITIAL_UNITS, MAX_REMEMBERED_UNITS = 1, 1024 -- of ours, by which sharers are estimated

local floor, min, max = math.floor, math.min, math.max

local window, bucket, sliding = {}, {}, {}

local function bucket_of(burst, period, is_exact)
  local rate = burst / period
  local is_roomy = burst >= ROOMY_BURST
  local level = is_roomy and burst * min(burst, LARGE_BURST) / (4 * LARGE_BURST)
    or SMALL_BUCKET_LEVEL[max(1, floor(burst))]
  return {
    kind = bucket, rate = rate, amount = burst, period = period, is_exact = is_exact, is_roomy = is_roomy,
    take_rate = rate / level,
  }
end

-- Plans by the shape of a limit's flow (gateway/bundle.py).
local plan_makers = {
  bucket = function(burst, period) return bucket_of(burst, period, nil) end,
  ["exact bucket"] = function(burst, period) return bucket_of(burst, period, true) end,
  window = function(amount, period)
    return { kind = window, rate = amount / period, amount = amount, period = period }
  end,
  sliding = function(amount, period)
    return { kind = sliding, rate = amount / period, amount = amount, period = period }
  end,
}

-- Returns the shedding plan of a limit; nil if it is not shed.
function M.plan(limit)
  local flow = limit.flow
  local plan = flow and plan_makers[flow.shape](limit.fresh, flow.period_us)
  if not plan or plan.period > MAX_PERIOD_US then return nil end
  plan.trust_us = max(TRUST_US, 2 / plan.rate)
  return plan
end

-- Returns the units that may be available, the units per microsecond to request, the expected available units, and the
-- end of the window.
function window.request_rate(plan, state, now)
  local available, level_at, window_end = state[AVAILABLE], state[AVAILABLE_AT], state[WINDOW_END]
  if now >= window_end then
    local window_start = floor((now - window_end) / plan.period) * plan.period + window_end
    available, level_at, window_end = plan.amount, window_start, window_start + plan.period
  end
  local sharers, time_at_reply, time_left = state[SHARERS], window_end - level_at, window_end - now
  local expected = available * (time_left + (time_at_reply - time_left) / sharers) / time_at_reply
  return available, expected / time_left / sharers, expected, window_end
end

-- Notes how many units have gone since the last reply, and how many of them to us.
local function note_units_gone(state, units_gone, cost, outcome)
  if state[LAST_SEEN_AT] == 0 then return end -- this is the first
  state[UNITS_GONE] = state[UNITS_GONE] + units_gone
  if outcome[1] == 1 then state[UNITS_OURS] = state[UNITS_OURS] + cost end
  if state[UNITS_OURS] > MAX_REMEMBERED_UNITS then
    state[UNITS_GONE], state[UNITS_OURS] = state[UNITS_GONE] / 2, state[UNITS_OURS] / 2
  end
end

function window.observe(plan, state, cost, outcome, sent_at)
  local available, window_end = outcome[2], sent_at + outcome[4]
  local same_window = window_end - state[LAST_SEEN_AT] < plan.period / 2 -- as that of the last reply
  note_units_gone(state, (same_window and state[LAST_AVAILABLE] or plan.amount) - available, cost, outcome)
  state[AVAILABLE], state[AVAILABLE_AT] = available, sent_at
  state[LAST_AVAILABLE], state[LAST_SEEN_AT] = available, window_end
  if outcome[4] > 0 then state[WINDOW_END] = window_end end
end

function bucket.request_rate(plan, state, now)
  local sharers, growth = state[SHARERS], plan.rate
  if plan.is_roomy then growth = growth / sharers elseif sharers > 2 then growth = growth / sharers end
  local available = min(plan.amount, state[AVAILABLE] + growth * (now - state[AVAILABLE_AT]))
  return available, available * plan.take_rate / (plan.is_roomy and sharers or 1), available, 0
end

local function bucket_level(plan, cost, outcome)
  if plan.is_exact then return plan.amount - outcome[4] * plan.rate end
  if outcome[1] == 1 or outcome[3] < 0 then return outcome[2] end
  return cost - outcome[3] * plan.rate
end

function bucket.observe(plan, state, cost, outcome, sent_at, received_at)
  local available, level_at = bucket_level(plan, cost, outcome), (sent_at + received_at) / 2
  local level_before = state[LAST_AVAILABLE] + plan.rate * (level_at - state[LAST_SEEN_AT])
  note_units_gone(state, min(level_before, plan.amount) - available, cost, outcome)
  state[LAST_AVAILABLE], state[LAST_SEEN_AT], state[AVAILABLE] = available, level_at, available
  state[AVAILABLE_AT] = plan.is_roomy and level_at or sent_at -- of a small one the next unit is requested in advance
end

local function credit_growth(plan, state) return plan.rate * SLIDING_OVERSHOOT / state[SHARERS] end

function sliding.request_rate(plan, state, now, cost)
  local growth = credit_growth(plan, state)
  local available = min(max(MAX_CREDIT, cost + 1), state[AVAILABLE] + growth * (now - state[AVAILABLE_AT]))
  return available, available * growth * CREDIT_SPEEDUP, available, 0
end

function sliding.observe(plan, state, cost, outcome, sent_at, received_at)
  if outcome[1] == 1 then
    if outcome[2] <= EXHAUSTED_SHARE * plan.amount then state[EXHAUSTED_AT] = received_at end
    return
  end
  state[EXHAUSTED_AT] = received_at
  if outcome[3] >= 0 then
    state[AVAILABLE], state[AVAILABLE_AT] = cost - outcome[3] * credit_growth(plan, state), (sent_at + received_at) / 2
  end
end

-- Estimates the sharers: as many as would take equal parts, rounded up. An nginx that assumes fewer takes more, and
-- would be right.
local function sharers_by_units_gone(_, state, count)
  return max(1, min(count, floor(state[UNITS_GONE] / state[UNITS_OURS] + 0.9)))
end

window.sharers, bucket.sharers = sharers_by_units_gone, sharers_by_units_gone

function sliding.sharers(plan, state, count, now)
  local is_exhausted = now - state[EXHAUSTED_AT] <= plan.period
  local factor = 1 + (is_exhausted and SHARERS_GROWTH or -SHARERS_SHRINK) * min(1, UPDATE_INTERVAL_US / plan.period)
  return max(1, min(count, state[SHARERS] * factor))
end

-- Updates among how many the limit is shared, at most `count`. To be called about ten times a second.
function M.update_sharers(plan, state, count, now)
  state[SHARERS], state[MEMBER_COUNT] = plan.kind.sharers(plan, state, count, now), count
end

-- Initializes a state.
function M.begin(state, now, count)
  for index = 0, M.STATE_SIZE - 1 do state[index] = 0 end
  state[AVAILABLE_AT], state[DEMAND_MARK_AT], state[EXHAUSTED_AT] = now, now, now
  state[SHARERS], state[MEMBER_COUNT] = count, count
  state[UNITS_GONE], state[UNITS_OURS] = INITIAL_UNITS * count, INITIAL_UNITS
end

-- Returns the probability with which a request of this cost may ask: from 0 to 1, or more.
function M.chance(plan, state, now, cost)
  if now - state[AVAILABLE_AT] > plan.trust_us then return 1 end
  local available, request_rate = plan.kind.request_rate(plan, state, now, cost)
  if available < cost then return 0 end
  return request_rate / state[DEMAND]
end

-- Notes that a request asks Redis.
function M.note_request(plan, state, now, cost)
  local _, _, available, window_end = plan.kind.request_rate(plan, state, now, cost)
  state[AVAILABLE], state[AVAILABLE_AT], state[WINDOW_END] = available - cost, now, window_end
end

-- Updates a state by the outcome of a request that was sent and received at these instants.
function M.observe(plan, state, cost, outcome, sent_at, received_at)
  plan.kind.observe(plan, state, cost, outcome, sent_at, received_at)
end

-- Returns whether the demand at this nginx is far above its part of the limit.
function M.flooded(plan, state, min_demand)
  local demand = state[DEMAND]
  return demand > min_demand and demand > 2 * plan.rate / state[MEMBER_COUNT]
end

-- Returns the microseconds until the limit is as if never used, at the latest.
function M.reset(plan, state, now)
  local window_end = state[WINDOW_END]
  if window_end > now then return floor(window_end - now) end
  return floor(plan.period)
end

return M
