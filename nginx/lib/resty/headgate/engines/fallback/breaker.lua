-- The circuit breaker: when to stop asking Redis, and when to try again. The twin of
-- engines/layers/fallback/breaker.py, where its law and its phases are described. Pure.
--
-- A breaker is { phase, failures, pause_us, since_us, until_us }, and is never changed: each function returns the one
-- after it, or the same.
--
-- Law (tests/nginx/engines/test_breaker.py): every step has the result of Python's.

local M = { CLOSED = 0, OPEN = 1, PROBING = 2, SETTLING = 3, CALL = "call", PROBE = "probe", FALL_BACK = "fall back" }

local CLOSED, OPEN, PROBING, SETTLING = M.CLOSED, M.OPEN, M.PROBING, M.SETTLING
local CALL, PROBE, FALL_BACK = M.CALL, M.PROBE, M.FALL_BACK
local FAILURES_TO_OPEN = 3
local FIRST_PAUSE_US, MAX_PAUSE_US, PROBE_TIMEOUT_US = 100000, 500000, 5000000

local max, min = math.max, math.min

local function breaker(phase, failures, pause_us, since_us, until_us)
  return { phase = phase, failures = failures, pause_us = pause_us, since_us = since_us, until_us = until_us }
end

M.NEW = breaker(CLOSED, 0, 0, 0, 0)

local function longer_pause_us(self) return min(2 * self.pause_us, MAX_PAUSE_US) end

local function open(self, pause_us, now_us)
  return breaker(OPEN, self.failures + 1, pause_us, now_us, now_us + pause_us)
end

local function with_failures(self, failures)
  return breaker(self.phase, failures, self.pause_us, self.since_us, self.until_us)
end

-- Returns what a call that comes now should do, and the breaker after it.
function M.choose_route(self, now_us)
  if self.phase == CLOSED then return CALL, self end
  local is_over = now_us < self.since_us or now_us >= self.until_us
  if self.phase == SETTLING then return CALL, is_over and breaker(CLOSED, self.failures, 0, 0, 0) or self end
  if not is_over then return FALL_BACK, self end
  return PROBE, breaker(PROBING, self.failures, self.pause_us, now_us, now_us + PROBE_TIMEOUT_US)
end

-- Returns the breaker after Redis answered a call of this route.
function M.on_success(self, route, now_us, settle_us)
  if route == PROBE and self.phase == PROBING then
    return settle_us > 0 and breaker(SETTLING, 0, 0, now_us, now_us + settle_us) or M.NEW
  end
  if self.failures > 0 and (self.phase == CLOSED or self.phase == SETTLING) then return with_failures(self, 0) end
  return self
end

-- Returns the breaker after Redis did not answer a call of this route.
function M.on_failure(self, route, now_us)
  if self.phase == PROBING and route == PROBE then return open(self, longer_pause_us(self), now_us) end
  if self.phase == OPEN or self.phase == PROBING then return self end
  if self.failures + 1 >= FAILURES_TO_OPEN then return open(self, FIRST_PAUSE_US, now_us) end
  return with_failures(self, self.failures + 1)
end

-- Returns the breaker after a call never reached Redis; if it was the probe, the next call may probe.
function M.on_withdrawal(self, route, now_us)
  if self.phase ~= PROBING or route ~= PROBE then return self end
  return breaker(OPEN, self.failures, self.pause_us, now_us, now_us)
end

-- Returns when a call that got no answer may reach Redis again: at the next probe. Where one is under way, or none is
-- due yet, after the pause that follows one more failure.
function M.next_probe_us(self, now_us)
  local left_us = self.phase == OPEN and self.since_us <= now_us and max(0, self.until_us - now_us) or 0
  if left_us > 0 then return left_us end
  return (self.phase == CLOSED or self.phase == SETTLING) and FIRST_PAUSE_US or longer_pause_us(self)
end

return M
