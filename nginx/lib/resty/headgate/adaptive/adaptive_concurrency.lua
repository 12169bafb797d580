-- Finds how many calls a service can work on, and lets a short queue form there: the twin of
-- adaptive/adaptive_concurrency.py and adaptive_concurrency_state.py, which explain it.
--
-- A state is a table (or a struct) of numbers, which `update` changes: those of Python's ConcurrencyState, where
-- `learned` is the limit with its fraction, a truth is 1 or 0, and a trial and a relation are fields of their own.
--
-- Law (tests/nginx/test_adaptive_parity.py): bit by bit the limit, the state and the reason of Python.

local libm = require "resty.headgate.adaptive.libm"
local offered_load = require "resty.headgate.adaptive.offered_load"

local M = {}

local exp, log, pow = libm.exp, libm.log, libm.pow
local abs, floor, max, min, sqrt = math.abs, math.floor, math.max, math.min, math.sqrt

local NS_PER_SECOND = 1000000000.0
local DEFAULT_START = 20
local TOLERANCE, MIN_WINDOW_S, SAMPLES, VERIFY_WINDOWS = 1.55, 0.05, 20, 20

local SHORT, QUEUE, SURE_QUEUE = 1.05, 1.15, 1.25
local SHORT_QUEUE, LEAST_QUEUE, BRIDGED = 2.2, 1.5, 4.0
local MOVED_UP, MOVED_DOWN = log(1.33), -log(1.38)
local PROPORTIONAL, CHANGED, TRIAL_WINDOWS = 0.5, -0.3, 3
local CAREFUL, CUT, VERIFY_CUT, FALLEN, PANIC = 0.08, 0.6, 0.68, 0.7, 3.0
local DROP_SHARE, LASTING_DROP_SHARE, BEYOND = 0.1, 0.04, 1.5
local SMALL_STEP, LEAST_STEP, DROP_WINDOWS = 0.02, 0.25, 30
local PRECISION, MAX_SAMPLES, MIN_SAMPLES = 0.1, 200, 4
local HEAVY, HEAVY_LOAD, REFUSING_WINDOWS = 0.3, 1.3, 3

local RECENT, MORE_ROOM, LESS_ROOM = 0.15, 0.2, 0.5
local SURE, VERY_SURE = 2.0, 3.0
local IMPRECISE = pow(0.05, 2)
local NO_QUEUE, SAME, FLAT_RANGE = 1.08, 0.06, 1.4

-- The fields of a state, and what they are at the start, unless that is 0.
M.FIELDS = {
  "learned", "base_ns", "response_ns", "proven", "has_trial", "trial_limit", "trial_in_flight", "trial_response_ns",
  "trial_windows", "trial_slower_ns", "unverified", "verified_limit", "has_relation", "relation_in_flight",
  "relation_response", "in_flight_variance", "response_variance", "covariance", "drop_level", "drop_windows",
  "drop_share", "dropping", "refusing", "slow", "flat_low", "flat_high", "load_rate", "load_last_rate",
  "load_capacity", "load_calls", "load_level", "room", "deviation", "base_variance",
}

-- Returns the settings of a limit between these bounds.
function M.settings(low, high) return { floor = low, ceiling = high } end

-- Sets the state before the first window.
function M.start(settings, s)
  for _, name in ipairs(M.FIELDS) do s[name] = 0 end
  s.learned, s.room = max(settings.floor, min(settings.ceiling, DEFAULT_START)), 0.1
end

-- Returns when the next window is complete: its length, its calls, and how long it settles.
function M.window_of(_, s)
  local down = s.has_trial == 1 and s.trial_limit > s.learned
  local settle_ns = 0.9 * (down and min(s.base_ns, s.response_ns) or s.response_ns)
  local calls_each = s.has_trial == 1 and 1 or 2
  local least = s.learned >= 2.0 and MIN_SAMPLES or 2
  local samples = max(least, min(down and floor(SAMPLES / 2) or SAMPLES, floor(calls_each * s.learned)))
  if s.learned > 0.6 * s.load_capacity * s.base_ns then
    samples = max(samples, min(MAX_SAMPLES, floor(pow(s.deviation / PRECISION, 2))))
  end
  return max(MIN_WINDOW_S * NS_PER_SECOND, settle_ns), samples, settle_ns
end

local function met_in_flight(window) return max(1.0, window.mean_in_flight) end

local function surely_slower(s, window) return window.typical_ns / s.base_ns * exp(-SURE * window.spread) end

local function start_trial(s, limit, in_flight, response_ns)
  s.has_trial, s.trial_limit, s.trial_in_flight, s.trial_response_ns = 1, limit, in_flight, response_ns
  s.trial_windows, s.trial_slower_ns = 0, 0
end

local function end_trial(s)
  s.has_trial, s.trial_limit, s.trial_in_flight, s.trial_response_ns = 0, 0, 0, 0
  s.trial_windows, s.trial_slower_ns = 0, 0
end

-- Begins a trial from this window on, unless one is under way.
local function with_trial(s, limit, window)
  if s.has_trial == 0 then start_trial(s, limit, met_in_flight(window), window.typical_ns) end
end

-- Adds a point to the relation of calls in flight and response times.
local function add_relation(s, in_flight, response)
  if s.has_relation == 0 then
    s.has_relation, s.relation_in_flight, s.relation_response = 1, in_flight, response
    return
  end
  local x, y, keep = in_flight - s.relation_in_flight, response - s.relation_response, 1.0 - RECENT
  s.relation_in_flight = s.relation_in_flight + RECENT * x
  s.relation_response = s.relation_response + RECENT * y
  s.in_flight_variance = keep * (s.in_flight_variance + RECENT * x * x)
  s.response_variance = keep * (s.response_variance + RECENT * y * y)
  s.covariance = keep * (s.covariance + RECENT * x * y)
end

local function is_flat(s)
  local varied = s.in_flight_variance
  return varied > 0.005 and s.response_variance < 0.06 * varied and s.covariance < 0.1 * varied
end

-- Returns what a window tells of the base, its variance, and whether it is proven.
local function estimate_base(s, window, full)
  local base_ns, proven, variance, response_ns = s.base_ns, s.proven == 1, s.base_variance, window.typical_ns
  local spread = window.spread
  if base_ns == 0.0 then return response_ns, pow(spread, 2), proven end
  if variance > IMPRECISE and not full then
    local gain = variance / (variance + pow(spread, 2))
    return base_ns * pow(response_ns / base_ns, gain), variance * (1.0 - gain), proven
  elseif window.mean_in_flight <= 1.0 and window.in_flight <= 2 then
    return base_ns + 0.5 * (response_ns - base_ns), variance, true
  elseif response_ns * exp(VERY_SURE * spread) < base_ns then
    return base_ns + 0.6 * (response_ns - base_ns), variance, proven and response_ns > 0.8 * base_ns
  elseif response_ns < base_ns or (not full and response_ns < base_ns * exp(SURE * spread)) then
    return base_ns + 0.1 / (1.0 + pow(spread, 2) / IMPRECISE) * (response_ns - base_ns), variance, proven
  elseif is_flat(s) then
    return base_ns + 0.2 * max(0.0, min(response_ns, exp(s.relation_response)) - base_ns), variance, proven
  elseif window.in_flight < 0.5 * s.learned then
    return base_ns + 0.02 * (response_ns - base_ns), variance, proven
  end
  return base_ns, variance, proven
end

-- Adds what a window tells of the base, without a trial.
local function add_base(s, window)
  local response_ns, in_flight = window.typical_ns, met_in_flight(window)
  add_relation(s, log(in_flight), log(response_ns))
  local full = window.refused > 0 or window.in_flight >= floor(s.learned)
  local base_ns, variance, proven = estimate_base(s, window, full)
  if abs(base_ns - s.base_ns) > SAME * base_ns then s.flat_low, s.flat_high = 0.0, 0.0 end
  if abs(response_ns - base_ns) < SAME * base_ns then
    s.flat_low = min(s.flat_low == 0 and in_flight or s.flat_low, in_flight)
    s.flat_high = max(s.flat_high, in_flight)
    proven = proven or s.flat_high > FLAT_RANGE * s.flat_low
  end
  if window.refused > 0 and response_ns > NO_QUEUE * base_ns then
    local more = max(0.0, floor(s.learned) - in_flight) - s.room
    s.room = s.room + (more > 0 and MORE_ROOM or LESS_ROOM) * more
  end
  offered_load.add_window(s, window, in_flight, base_ns)
  s.base_variance = variance
  s.deviation = s.deviation + RECENT * (window.spread * sqrt(window.samples) - s.deviation)
  s.base_ns, s.proven, s.response_ns = base_ns, proven and 1 or 0, response_ns
  if response_ns < NO_QUEUE * base_ns then
    if window.refused == 0 then s.unverified = 0 end
    s.verified_limit = s.learned
  end
end

-- Returns how many calls may wait inside a service that works on so many at a time.
local function queue_of(s, workers)
  local queue = max((TOLERANCE - 1.0) * workers, min(workers, SHORT_QUEUE))
  local gaps = s.room > 0.01 and BRIDGED / log(1.0 + 1.0 / s.room) or 0.0
  queue = min(queue, max(LEAST_QUEUE, 0.12 * workers, gaps))
  return max(queue, offered_load.burst_queue(s))
end

local function workers_of(s, window) return met_in_flight(window) * s.base_ns / window.typical_ns end

local function target_of(s, window)
  local workers = workers_of(s, window)
  return workers + queue_of(s, workers)
end

local function tolerated_by(s, window)
  local workers = workers_of(s, window)
  return 1.0 + queue_of(s, workers) / workers
end

-- Returns the limit as of the window before a trial, by the base as it is known now.
local function before_trial(s, trial_in_flight, trial_response_ns)
  local workers = trial_in_flight * s.base_ns / trial_response_ns
  return workers + queue_of(s, workers)
end

local function set(settings, s, limit, reason)
  s.learned = max(settings.floor, min(settings.ceiling, limit))
  return reason
end

-- Sets a limit that may be higher, but not as high as where calls were dropped.
local function grow(settings, s, limit, reason)
  local level, learned = s.drop_level, s.learned
  if s.drop_windows > 0 and level > 0 and limit >= level then
    return set(settings, s, max(min(learned, limit), level - 0.01), "below drops")
  end
  if level > 0 and limit > 0.8 * level then
    local careful = max(learned, 0.8 * level) + max(LEAST_STEP, SMALL_STEP * learned)
    return set(settings, s, max(min(learned, limit), min(limit, careful)), reason)
  end
  return set(settings, s, limit, reason)
end

local function after_drops(settings, s, window, share)
  if window.typical_ns ~= 0 then s.response_ns = window.typical_ns end
  end_trial(s)
  if s.dropping == 0 then s.drop_level = window.in_flight end
  s.drop_windows, s.drop_share, s.dropping = DROP_WINDOWS, 0.0, 1
  local used = max(1.0, min(s.learned, window.in_flight))
  return set(settings, s, used * max(0.5, 1.0 - share), "dropped")
end

local function demand_of(window) return window.refused / (window.refused + window.samples) end

-- Concludes from a trial that moved the calls in flight down. Returns the limit and a reason; nil if it stays open.
local function judge_fall(s, window, moved, followed, in_flight)
  local limit, response_ns = s.learned, window.typical_ns
  local trial_in_flight, trial_response_ns, slower_ns = s.trial_in_flight, s.trial_response_ns, s.trial_slower_ns
  if followed < CHANGED then
    start_trial(s, limit, in_flight, response_ns)
    return limit, "changed"
  end
  if followed + window.spread / abs(moved) < PROPORTIONAL then
    local reason = response_ns > 1.1 * s.base_ns and "slower service" or "verified"
    if reason == "slower service" and slower_ns == 0 then
      s.trial_slower_ns = response_ns
      return limit, "slower once"
    end
    if slower_ns ~= 0 then response_ns = min(response_ns, slower_ns) end
    end_trial(s)
    s.proven, s.base_ns, s.unverified = 1, response_ns, 0
    return max(limit, before_trial(s, trial_in_flight, trial_response_ns)), reason
  end
  local base_ns = min(s.base_ns, response_ns * exp(window.spread))
  local heavy = demand_of(window) > HEAVY and offered_load.ratio(s) > HEAVY_LOAD
  local as_believed = 0.93 * s.base_ns < response_ns and response_ns < SHORT * s.base_ns
  if s.proven == 0 and window.refused > 0 and (heavy or not as_believed) then
    start_trial(s, limit, in_flight, response_ns)
    s.base_ns = base_ns
    return CUT * limit, "explore"
  end
  end_trial(s)
  if response_ns < QUEUE * base_ns then
    s.base_ns = base_ns
    return max(limit, before_trial(s, trial_in_flight, trial_response_ns)), "verified"
  end
end

-- Concludes from a trial, if it moved the calls in flight. Returns the limit and a reason; nil if it stays open.
local function judge(s, window)
  local limit, response_ns, in_flight = s.learned, window.typical_ns, met_in_flight(window)
  local moved = log(in_flight / s.trial_in_flight)
  if MOVED_DOWN < moved and moved < MOVED_UP then
    local falling = limit < s.trial_limit and response_ns > tolerated_by(s, window) * s.base_ns
    if falling or s.trial_windows + 1 < TRIAL_WINDOWS then
      s.trial_windows = s.trial_windows + 1
    else
      end_trial(s)
    end
    return nil
  end
  local followed = log(response_ns / s.trial_response_ns) / moved
  if moved <= 0 then return judge_fall(s, window, moved, followed, in_flight) end
  if followed < PROPORTIONAL then
    s.proven, s.base_ns = 1, min(s.base_ns, s.trial_response_ns)
    end_trial(s)
  elseif s.proven == 0 and window.refused > window.samples then
    start_trial(s, limit, in_flight, response_ns)
    return CUT * limit, "explore"
  else
    end_trial(s)
  end
  return nil
end

local function when_not_full(settings, s, window)
  local limit = s.learned
  local fast = window.typical_ns < 1.06 * s.base_ns
  if surely_slower(s, window) > tolerated_by(s, window) then
    local wanted = max(target_of(s, window), 1.2 * window.in_flight, 0.7 * limit)
    return set(settings, s, min(limit, wanted), "slow, not full")
  end
  if window.in_flight > 0.8 * limit and fast and window.dropped == 0 then
    return grow(settings, s, 1.05 * limit, "nearly full")
  end
  return set(settings, s, limit, "not full")
end

-- Returns the reason, if a full window is too slow.
local function when_slow(settings, s, window, ratio, target, tolerated)
  local limit = s.learned
  if s.slow == 0 and ratio < PANIC * tolerated then
    s.slow = 1
    return set(settings, s, limit, "slow once")
  end
  limit = min(limit, window.in_flight)
  with_trial(s, limit, window)
  local part = ratio > 1.3 * tolerated and 1.0 or 0.5
  return set(settings, s, max(CUT * limit, limit + part * min(0.0, target - limit)), "queueing")
end

-- Returns the reason, if an overload makes it time to look for the base.
local function when_overloaded(settings, s, window, slower, demand)
  local limit = s.learned
  local heavy = demand > HEAVY and offered_load.ratio(s) > HEAVY_LOAD
  local unknown = heavy and s.proven == 0
  if not (slower > SHORT or unknown) or s.has_trial == 1 then return nil end
  if s.proven == 0 then
    with_trial(s, limit, window)
    return set(settings, s, (heavy and CUT or VERIFY_CUT) * limit, "explore")
  end
  if s.unverified >= VERIFY_WINDOWS or limit < FALLEN * s.verified_limit then
    s.unverified, s.verified_limit = 0, VERIFY_CUT * limit
    with_trial(s, limit, window)
    return set(settings, s, VERIFY_CUT * limit, "verify")
  end
end

local function when_full(settings, s, window)
  local limit, ratio, slower = s.learned, window.typical_ns / s.base_ns, surely_slower(s, window)
  local target, tolerated = target_of(s, window), tolerated_by(s, window)
  if slower > tolerated then return when_slow(settings, s, window, ratio, target, tolerated) end
  if window.dropped > 0 then return set(settings, s, limit, "few drops") end
  s.unverified, s.verified_limit = s.unverified + 1, max(s.verified_limit, limit)
  local demand = demand_of(window)
  if s.refusing >= REFUSING_WINDOWS and demand > 0.05 then
    local reason = when_overloaded(settings, s, window, slower, demand)
    if reason then return reason end
  end
  if slower > SHORT then
    if target < limit and ratio < SURE_QUEUE then return set(settings, s, limit, "short queue") end
    if offered_load.burst_queue(s) ~= 0 then return grow(settings, s, target, "random burst") end
    return grow(settings, s, limit + min(0.5 * (target - limit), CAREFUL * limit), "short queue")
  end
  with_trial(s, limit, window)
  if ratio > SHORT then return grow(settings, s, 1.05 * limit, "no queue") end
  local capacity = s.load_capacity * s.base_ns
  if limit > 0.85 * s.load_capacity * s.base_ns and capacity > 0.0 then
    return grow(settings, s, max(limit + 1.0, (1.0 + CAREFUL) * limit), "no queue")
  end
  local wanted = min(1.0, max(0.0, 4.0 * demand - 1.0))
  local grown = min((1.1 + 0.4 * wanted) * limit, 2.7 * met_in_flight(window))
  return grow(settings, s, max(limit + 1.0, 1.1 * limit, grown), "no queue")
end

-- Learns from a window: changes the state, and returns the reason.
function M.update(settings, s, window)
  local calls = window.samples + window.dropped
  local share = calls > 0 and window.dropped / calls or 0.0
  local lasting_share = s.drop_share + RECENT * (share - s.drop_share)
  if share >= DROP_SHARE or (window.dropped > 0 and lasting_share > LASTING_DROP_SHARE) then
    return after_drops(settings, s, window, max(share, DROP_SHARE))
  end
  if s.learned >= BEYOND * s.drop_level then s.drop_level = 0.0 end
  s.drop_windows, s.drop_share, s.dropping = max(0, s.drop_windows - 1), lasting_share, 0
  s.refusing = window.refused > 0 and s.refusing + 1 or 0
  if window.samples == 0 then return set(settings, s, s.learned, "no answer") end
  add_base(s, window)
  if surely_slower(s, window) <= tolerated_by(s, window) then s.slow = 0 end
  if s.has_trial == 1 then
    local limit, reason = judge(s, window)
    if reason then return set(settings, s, limit, reason) end
  end
  if window.refused > 0 or window.in_flight >= floor(s.learned) then return when_full(settings, s, window) end
  return when_not_full(settings, s, window)
end

return M
