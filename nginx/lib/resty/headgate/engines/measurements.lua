-- Measures this worker: how long decisions and round trips take, how large batches are, how many units were prefetched.
--
-- A request only appends a sample to a list, or adds to a number; once a second both are moved to the shared dict
-- (telemetry/shared_measurements.lua). Of what happens often, one in SAMPLE_EVERY is measured.
--
-- Law (tests/nginx/telemetry/test_histograms.py): between two moves a worker keeps at most MAX_SAMPLES of a kind.

local clock = require "resty.headgate.clock"

local M = {}

local monotonic_us = clock.monotonic_us
local SAMPLE_EVERY = 16
local MAX_SAMPLES = 1024

local function new_samples() return { number = 0, skipped = SAMPLE_EVERY - 1 } end

M.samples = {
  decision_seconds = new_samples(), delay_seconds = new_samples(), round_trip_seconds = new_samples(),
  batch_requests = new_samples(),
}
M.totals = { prefetched_units_total = 0, prefetch_lost_units_total = 0, lost_refunds_total = 0 }

-- Returns the time, if this one is measured; nil if not.
function M.begin(name)
  local samples = M.samples[name]
  local skipped = samples.skipped + 1
  if skipped < SAMPLE_EVERY then
    samples.skipped = skipped
    return nil
  end
  samples.skipped = 0
  return monotonic_us()
end

-- Adds a sample, unless there are too many already.
function M.observe(name, value)
  local samples = M.samples[name]
  local number = samples.number
  if number < MAX_SAMPLES then samples[number + 1], samples.number = value, number + 1 end
end

-- Adds the seconds that have passed since `begin`.
function M.observe_since(name, started_us) M.observe(name, (monotonic_us() - started_us) / 1000000) end

function M.add(name, number) M.totals[name] = M.totals[name] + number end

return M
