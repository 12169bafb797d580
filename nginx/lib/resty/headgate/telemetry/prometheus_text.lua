-- Writes metrics in Prometheus's text format. Knows no nginx. docs/reference/metrics.md lists every metric.
--
-- Laws (tests/nginx/telemetry/test_metrics.py): names and labels are those of a Python process; no key of a request is
-- a label; every text is one that Prometheus reads, whatever a rule is called.

local shared_measurements = require "resty.headgate.telemetry.shared_measurements"

local M = { CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8" }

local concat, format, gsub = table.concat, string.format, string.gsub

local MAX_LIMITS = 1000 -- that are reported as gauges
local OUTCOMES = {
  { "allowed", "a" }, { "refused", "r" }, { "shed", "x" }, { "shadow_allowed", "s" }, { "shadow_refused", "S" },
  { "candidate_allowed", "c" }, { "candidate_refused", "C" },
}
local LAYERS = { { "denial_cache", "D" }, { "prefetch", "P" }, { "fallback", "F" } }
local ESCAPES = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }

local function quoted(text) return '"' .. gsub(text, '[\\"\n]', ESCAPES) .. '"' end

local function add_head(lines, name, kind, help)
  lines[#lines + 1] = "# HELP headgate_" .. name .. " " .. help
  lines[#lines + 1] = "# TYPE headgate_" .. name .. " " .. kind
end

local function add_value(lines, name, labels, value)
  lines[#lines + 1] = "headgate_" .. name .. labels .. " " .. format("%.17g", value)
end

local function add_metric(lines, name, kind, help, value)
  add_head(lines, name, kind, help)
  add_value(lines, name, "", value)
end

local function sorted_names(by_name)
  local names = {}
  for name in pairs(by_name) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function label(rule) return "{rule=" .. quoted(rule) .. "}" end

-- Returns how many calls of a rule the engine itself decided.
local function by_engine(counts)
  local decided = (counts.a or 0) + (counts.r or 0)
  for _, layer in ipairs(LAYERS) do decided = decided - (counts[layer[2]] or 0) end
  return decided
end

local function add_layers(lines, totals, rules)
  add_head(lines, "decided_by_total", "counter", "Calls by the layer that decided them.")
  for _, rule in ipairs(rules) do
    local counts = totals[rule]
    local engine = by_engine(counts)
    local prefix = "{rule=" .. quoted(rule) .. ",layer="
    if engine > 0 then add_value(lines, "decided_by_total", prefix .. '"engine"}', engine) end
    for _, layer in ipairs(LAYERS) do
      local count = counts[layer[2]]
      if count then add_value(lines, "decided_by_total", prefix .. quoted(layer[1]) .. "}", count) end
    end
  end
end

local function add_counts(lines, totals)
  local rules, errors = sorted_names(totals), 0
  add_head(lines, "decisions_total", "counter", "Verdicts of rules on calls.")
  for _, rule in ipairs(rules) do
    for _, outcome in ipairs(OUTCOMES) do
      local count = totals[rule][outcome[2]]
      local labels = "{rule=" .. quoted(rule) .. ",outcome=" .. quoted(outcome[1]) .. "}"
      if count then add_value(lines, "decisions_total", labels, count) end
    end
    errors = errors + (totals[rule].E or 0)
  end
  add_layers(lines, totals, rules)
  add_head(lines, "delayed_total", "counter", "Allowed calls that had to wait.")
  for _, rule in ipairs(rules) do
    if totals[rule].d then add_value(lines, "delayed_total", label(rule), totals[rule].d) end
  end
  add_head(lines, "near_limit_total", "counter", "Allowed calls that left less than a fifth of the limit.")
  for _, rule in ipairs(rules) do
    if totals[rule].n then add_value(lines, "near_limit_total", label(rule), totals[rule].n) end
  end
  add_metric(lines, "errors_total", "counter", "Calls that could not be decided.", errors)
end

-- Returns every limit that a live rule of the bundle can choose, by its labels.
local function limits_by_labels(bundle)
  local limits = {}
  shared_measurements.each_limit(bundle, function(bound_limit)
    local rule, limit = bound_limit.rule, bound_limit.limit
    if limit.quota then
      limits["{rule=" .. quoted(rule.name) .. ",limit=" .. quoted(limit.text) .. "}"] = bound_limit
    end
  end)
  return limits
end

-- Adds a gauge of each limit; `value_of` returns nil for those that have none.
local function add_gauges(lines, name, help, limits, labels, value_of)
  add_head(lines, name, "gauge", help)
  for i = 1, math.min(#labels, MAX_LIMITS) do
    local value = value_of(limits[labels[i]])
    if value then add_value(lines, name, labels[i], value) end
  end
end

local function add_limits(lines, bundle, measured)
  local limits = limits_by_labels(bundle)
  local labels = sorted_names(limits)
  add_gauges(lines, "limit_units", "Units of a limit that is in effect.", limits, labels,
    function(bound_limit) return bound_limit.limit.quota end)
  add_gauges(lines, "limit_window_seconds", "Window of a limit that is in effect.", limits, labels,
    function(bound_limit) return bound_limit.limit.window end)
  add_gauges(lines, "remaining_units", "Units left of a rule that counts all calls together.", limits, labels,
    function(bound_limit) return measured:remaining(bound_limit) end)
end

-- Adds what workers measured: histograms and totals.
local function add_measurements(lines, measured)
  for _, histogram in ipairs(shared_measurements.HISTOGRAMS) do
    local name, bounds, help = histogram[1], histogram[2], histogram[3]
    local counts, sum = measured:histogram(name, bounds)
    local below = 0
    add_head(lines, name, "histogram", help)
    for i, count in ipairs(counts) do
      below = below + count
      local bound = bounds[i] and format("%.14g", bounds[i]) or "+Inf"
      add_value(lines, name .. "_bucket", '{le="' .. bound .. '"}', below)
    end
    add_value(lines, name .. "_sum", "", sum)
    add_value(lines, name .. "_count", "", below)
  end
  for _, total in ipairs(shared_measurements.TOTALS) do
    add_metric(lines, total[1], "counter", total[2], measured:total(total[1]))
  end
end

-- Adds the limits of adaptive rules. `adaptive`: limits, { rule, limit, in_flight } each; changes, { rule, reason,
-- count } each.
local function add_adaptive(lines, adaptive)
  add_head(lines, "adaptive_limit", "gauge", "What an adaptive rule allows now, of all processes together.")
  for _, row in ipairs(adaptive.limits) do add_value(lines, "adaptive_limit", label(row.rule), row.limit) end
  add_head(lines, "adaptive_in_flight", "gauge", "Calls in flight under an adaptive rule.")
  for _, row in ipairs(adaptive.limits) do add_value(lines, "adaptive_in_flight", label(row.rule), row.in_flight) end
  add_head(lines, "adaptive_changes_total", "counter", "Changes of adaptive limits, by reason.")
  for _, row in ipairs(adaptive.changes) do
    local labels = "{rule=" .. quoted(row.rule) .. ",reason=" .. quoted(row.reason) .. "}"
    add_value(lines, "adaptive_changes_total", labels, row.count)
  end
end

-- Returns the text. `totals`: by rule, by letter (telemetry/shared_totals.lua). `measured`: of
-- telemetry/shared_measurements.lua. `bundle`: the current one, if any.
-- `rejected`: how many changes of the rulebook were refused. `outages`: open, opened, seconds; nil without Redis.
-- `adaptive`: as add_adaptive takes it.
function M.render(totals, measured, bundle, rejected, outages, adaptive)
  local lines = {}
  add_counts(lines, totals)
  add_measurements(lines, measured)
  if bundle then add_limits(lines, bundle, measured) end
  add_adaptive(lines, adaptive)
  add_metric(lines, "rulebook_version", "gauge", "Number of the published rulebook in effect.",
    bundle and tonumber(bundle.version) or 0)
  add_metric(lines, "rulebook_rejected_total", "counter", "Changes of the rulebook that were refused.", rejected)
  if outages then
    add_metric(lines, "breakers_open", "gauge", "Servers that do not answer.", outages.open)
    add_metric(lines, "breaker_opened_total", "counter",
      "Times that a server was given up after three failures in a row.", outages.opened)
    add_metric(lines, "degraded_seconds_total", "counter", "Time in which a server did not answer.", outages.seconds)
  end
  return concat(lines, "\n") .. "\n"
end

return M
