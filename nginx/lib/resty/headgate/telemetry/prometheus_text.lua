-- Writes metrics in Prometheus's text format. Knows no nginx. docs/reference/metrics.md lists every metric.
--
-- Laws (tests/nginx/telemetry/test_metrics.py): names and labels are those of a Python process; no key of a request is
-- a label; every text is one that Prometheus reads, whatever a rule is called.

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
  for _, by_mode in pairs(bundle.bound_limits) do
    for _, bound_limit in ipairs(by_mode.live or {}) do
      local rule, limit = bound_limit.rule, bound_limit.limit
      if rule.mode ~= "shadow" and limit.text and limit.quota then
        limits["{rule=" .. quoted(rule.name) .. ",limit=" .. quoted(limit.text) .. "}"] = limit
      end
    end
  end
  return limits
end

local function add_limits(lines, bundle)
  local limits = limits_by_labels(bundle)
  local labels = sorted_names(limits)
  add_head(lines, "limit_units", "gauge", "Units of a limit that is in effect.")
  for i = 1, math.min(#labels, MAX_LIMITS) do add_value(lines, "limit_units", labels[i], limits[labels[i]].quota) end
  add_head(lines, "limit_window_seconds", "gauge", "Window of a limit that is in effect.")
  for i = 1, math.min(#labels, MAX_LIMITS) do
    local window = limits[labels[i]].window
    if window then add_value(lines, "limit_window_seconds", labels[i], window) end
  end
end

-- Returns the text. `totals`: by rule, by letter (telemetry/shared_totals.lua). `bundle`: the current one, if any.
-- `rejected`: how many changes of the rulebook were refused. `outages`: open, opened, seconds; nil without Redis.
function M.render(totals, bundle, rejected, outages)
  local lines = {}
  add_counts(lines, totals)
  if bundle then add_limits(lines, bundle) end
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
