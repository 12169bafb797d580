-- The measurements of all workers since nginx started, in the shared dict: histograms, totals, and the units that are
-- left of rules that count all calls together. Each worker adds its own (engines/measurements.lua) once a second; they
-- survive a reload.
--
--   t:H:<name>:<number>   how many samples are at most the bound of this number; the last has no bound
--   t:H:<name>:sum        the sum of the samples          t:T:<name>    a total
--   t:R:<rule>:<limit>    the units that are left
--
-- Histograms and totals have their places from the start, so there is always room for them.
--
-- Law (tests/nginx/telemetry/test_histograms.py): names and bounds are those of a Python process.

local measurements = require "resty.headgate.engines.measurements"

local M = {}

local LATENCY_BOUNDS = {
  1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
}
local DELAY_BOUNDS = { 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60 }

local KEPT_S = 25 * 3600 -- what is left of a limit, after its last call

-- The histograms, in the order in which they are shown.
M.HISTOGRAMS = {
  { "decision_seconds", LATENCY_BOUNDS, "Time that a decision took; one in 16 is timed." },
  { "delay_seconds", DELAY_BOUNDS, "Delays of allowed calls." },
  { "round_trip_seconds", LATENCY_BOUNDS, "Time from a request to the server's reply; sampled." },
  { "batch_requests", { 1, 2, 4, 8, 16, 32, 64, 128 }, "Requests that shared a round trip; sampled." },
}
M.TOTALS = {
  { "lost_refunds_total", "Refunds that never reached the engine." },
  { "prefetched_units_total", "Prefetched units that were handed out." },
  { "prefetch_lost_units_total", "Prefetched units that could not be given back." },
}

local function bucket_key(name, number) return "t:H:" .. name .. ":" .. number end

local function remaining_key(bound_limit) return "t:R:" .. bound_limit.rule.name .. ":" .. bound_limit.limit.text end

local SharedMeasurements = {}
SharedMeasurements.__index = SharedMeasurements

function M.new(dict)
  for _, histogram in ipairs(M.HISTOGRAMS) do
    for i = 1, #histogram[2] + 1 do dict:safe_add(bucket_key(histogram[1], i), 0) end
    dict:safe_add(bucket_key(histogram[1], "sum"), 0)
  end
  for _, total in ipairs(M.TOTALS) do dict:safe_add("t:T:" .. total[1], 0) end
  return setmetatable({ dict = dict }, SharedMeasurements)
end

-- Returns the number of the bucket of a sample.
local function bucket_of(bounds, value)
  for i = 1, #bounds do
    if value <= bounds[i] then return i end
  end
  return #bounds + 1
end

local function move_histogram(dict, name, bounds)
  local samples = measurements.samples[name]
  if samples.number == 0 then return end
  local counts, sum = {}, 0
  for i = 1, samples.number do
    local bucket = bucket_of(bounds, samples[i])
    counts[bucket], sum = (counts[bucket] or 0) + 1, sum + samples[i]
  end
  samples.number = 0
  for bucket, count in pairs(counts) do dict:incr(bucket_key(name, bucket), count) end
  dict:incr(bucket_key(name, "sum"), sum)
end

-- Calls the function with each limit that a live rule of the bundle can choose.
function M.each_limit(bundle, action)
  for _, by_mode in pairs(bundle.bound_limits) do
    for _, bound_limit in ipairs(by_mode.live or {}) do
      if bound_limit.rule.mode ~= "shadow" and bound_limit.limit.text then action(bound_limit) end
    end
  end
end

-- Moves the measurements of this worker to the dict. `bundle`: the current one, if any.
function SharedMeasurements:flush(bundle)
  local dict = self.dict
  for _, histogram in ipairs(M.HISTOGRAMS) do move_histogram(dict, histogram[1], histogram[2]) end
  for name, total in pairs(measurements.totals) do
    if total > 0 and dict:incr("t:T:" .. name, total) then measurements.totals[name] = 0 end
  end
  if not bundle then return end
  M.each_limit(bundle, function(bound_limit)
    if bound_limit.remaining and dict:safe_set(remaining_key(bound_limit), bound_limit.remaining, KEPT_S) then
      bound_limit.remaining = nil
    end
  end)
end

-- Returns the counts of each bucket of a histogram, and the sum of its samples.
function SharedMeasurements:histogram(name, bounds)
  local counts = {}
  for i = 1, #bounds + 1 do counts[i] = self.dict:get(bucket_key(name, i)) or 0 end
  return counts, self.dict:get(bucket_key(name, "sum")) or 0
end

function SharedMeasurements:total(name) return self.dict:get("t:T:" .. name) or 0 end

-- Returns the units that are left of a limit; nil if it does not count all calls together, or was not called yet.
function SharedMeasurements:remaining(bound_limit) return self.dict:get(remaining_key(bound_limit)) end

return M
