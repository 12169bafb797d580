-- Compiles a bundle: a rulebook with everything that Python derived from it for a gateway (gateway/bundle.py).
--
-- The result has two parts: `match`, which returns the rules that apply to a request, and the bound limits by which
-- they charge. A bound limit is one limit of one rule under the name that its counts have, and says which engine
-- decides it (`decided_by`):
--
--   shared       where: node and split, and everything if there is no Redis: on the shared dict
--   adaptive     limits that follow response times: on the shared dict, and held until the request ends
--   slots        "20 slots": acquired by a request of its own, and held until the request ends
--   prefetched   units of a hot key, fetched ahead
--   redis        everything else: in Redis, in one request
--
-- Laws (tests/nginx/test_gateway.py, test_faults.py): a bound limit has the name that Python gives the same count; a
-- bundle that cannot be followed is refused as a whole, with a sentence, and the current bundle stays.

local bundle_json = require "resty.headgate.rules.bundle_json"
local headers = require "resty.headgate.http.headers"
local keys = require "resty.headgate.engines.redis.keys"
local limit_share = require "resty.headgate.engines.fallback.limit_share"
local match = require "resty.headgate.rules.match"
local refusal_body = require "resty.headgate.http.refusal_body"

local M = {}

local ADAPTIVE, SHARED, SLOTS, PREFETCHED, REDIS = "adaptive", "shared", "slots", "prefetched", "redis"

local function fail(...) error(table.concat { ... }, 0) end

local function engine_of(rule, limit, options, shared_only)
  if limit.algorithm == ADAPTIVE then return ADAPTIVE end
  if require("resty.headgate.algorithms." .. limit.algorithm).is_held then return SLOTS end
  if shared_only or rule.where == "node" or rule.where == "split" then return SHARED end
  return options.prefetch and PREFETCHED or REDIS
end

-- Returns the name of a rule's counts: by position, and by case where cases are counted separately.
local function count_name(rule, position, case_name, candidate)
  local name = candidate and rule.name .. "~" or rule.name
  if position > 1 then name = name .. "#" .. position - 1 end
  return case_name and case_name ~= "" and name .. "@" .. case_name or name
end

local function charge_options(rule, rule_options, shadow, settings)
  local prefetch = not shadow and rule_options.prefetch or nil
  local candidate = shadow == "candidate"
  return {
    rule = rule.name, shadow = shadow ~= nil, lockout = not candidate and rule_options.lockout or nil,
    overrides = not candidate and rule.overrides or false,
    pausable = not candidate and (rule.pausable or false) ~= false, fallback = rule.fallback or settings.fallback,
    deadline = rule_options.deadline or settings.deadline, prefetch = prefetch,
  }
end

-- Binds the limits of one rule; all of them share one table of options.
local function bind_limits(bundle, rule, limits, case_name, shadow, settings)
  local bound_limits, options = {}, charge_options(rule, bundle.charge_options[rule.name] or {}, shadow, settings)
  for position, text in ipairs(limits) do
    local limit = bundle.limits[text] or fail('rule "', rule.name, '": the bundle does not say what ', text, " is.")
    local counted_limit = limit
    if rule.where == "split" then counted_limit = limit_share.even(limit, settings.position(rule)) end
    local name = count_name(rule, position, case_name, shadow == "candidate")
    local decided_by = engine_of(rule, limit, options, settings.shared_only)
    local on_shared_dict = decided_by ~= ADAPTIVE
      and (decided_by == SHARED or settings.shared_only or rule.where == "node" or rule.where == "split")
    local reason = decided_by == SHARED and settings.reason_unsupported and settings.reason_unsupported(counted_limit)
    if reason then fail('rule "', rule.name, '": ', reason) end
    bound_limits[position] = {
      rule = rule, name = name, shadow = shadow, limit = counted_limit, options = options,
      decided_by = decided_by, on_shared_dict = on_shared_dict,
      head = keys.head(settings.prefix, limit.algorithm, name),
    }
  end
  return bound_limits
end

-- Binds every limit that a rule may choose, into `result`.
local function bind_all(bundle, rule, values, case_names, modes, result, settings)
  for i, limits in ipairs(values) do
    result[limits] = {}
    for _, mode in ipairs(modes) do
      local shadow = mode ~= "live" and mode or nil
      result[limits][mode] = bind_limits(bundle, rule, limits, case_names and case_names[i], shadow, settings)
    end
  end
end

-- Returns a note about overrides, which have no effect without Redis; nil if no rule has them.
local function unused_without_redis(rules)
  local names = {}
  for _, rule in ipairs(rules) do
    if rule.overrides then names[#names + 1] = rule.name end
  end
  if #names == 0 then return nil end
  return "overrides are stored in Redis, and there is none here: they are not used by " .. table.concat(names, ", ")
    .. "."
end

-- Refuses a rule that counts without Redis, and is to be paused there: calls would pass that an operator believes to
-- have stopped.
local function check_pausable(rule, settings)
  if settings.shared_only and rule.pausable then
    fail('rule "', rule.name, '" is pausable, and pauses are stored in Redis, where this nginx does not look: it has ',
      'engine = "shared". Count in Redis (redis = "redis://...", without engine), or compile a rulebook without ',
      "pausable for this nginx.")
  end
end

local function is_limit(limit)
  return type(limit) == "table" and type(limit.algorithm) == "string" and type(limit.numbers) == "table"
    and type(limit.quota) == "number" and type(limit.fresh) == "number"
end

-- Sets the text of each limit. An algorithm that has no model here comes from a newer Python.
local function set_texts(limits)
  for text, limit in pairs(limits) do
    if not is_limit(limit) then fail("the bundle does not say what ", text, " is.") end
    if limit.algorithm ~= ADAPTIVE and not pcall(require, "resty.headgate.algorithms." .. limit.algorithm) then
      fail('this nginx knows no "', limit.algorithm, '", as ', text,
        " is: it is older than the headgate that wrote the bundle.")
    end
    limit.text = text
  end
end

-- Writes the adaptive limit of a rule as a choice of the texts of its classes, as match.lua reads it.
local function write_adaptive_choices(bundle)
  for _, rule in ipairs(bundle.rules) do
    local options = bundle.charge_options[rule.name] or {}
    local spec, texts = rule.limit, options.adaptive
    if type(spec) == "table" and spec.adaptive then
      if not texts then fail('rule "', rule.name, '": the bundle does not say what its adaptive limit is.') end
      rule.is_adaptive, rule.limit = true, texts[#texts]
      if spec.priority then
        local cases = {}
        for i, value in ipairs(options.cases.limit) do cases[value] = texts[i] end
        rule.limit = { by = spec.priority.by, cases = cases, otherwise = texts[#texts] }
      end
    end
  end
end

-- Returns the first rule that is split among the current members; nil if none is.
local function split_rule(rules)
  for _, rule in ipairs(rules) do
    if rule.where == "split" and not rule.nodes then return rule end
  end
end

-- Returns count and rank as one text.
local function position_text(count, rank) return count .. ":" .. tostring(rank) end

-- Returns whether a bundle was compiled for another number of members, or another rank, than there is now.
function M.is_outdated(bundle, settings)
  return bundle.split ~= nil and bundle.split_position ~= position_text(settings.position(bundle.split))
end

-- Compiles the text of a bundle.
--
-- `settings`: prefix, fallback, deadline (seconds), shared_only (there is no Redis), position (a function of a rule:
-- among how many members its limit is split, and the rank of this one), reason_unsupported (a function of a limit that
-- is decided on the shared dict: a sentence, or nil).
function M.compile(text, settings)
  local bundle = bundle_json.decode(text)
  if type(bundle) ~= "table" or not bundle.rules or not bundle.limits then
    fail("This is no bundle. Compile a rulebook by `headgate rules compile`, or publish it by `headgate rules push`.")
  end
  if bundle.headers and not headers.is_form(bundle.headers) then
    fail('"', bundle.headers, '" is no form of headers.')
  end
  bundle.charge_options = bundle.charge_options or {}
  set_texts(bundle.limits)
  write_adaptive_choices(bundle)
  local match_call, choices = match.compile(bundle, settings.crc32)
  local split = split_rule(bundle.rules)
  local split_position = split and position_text(settings.position(split))
  local bound_limits, rules = {}, {}
  for i, rule in ipairs(bundle.rules) do
    local rule_options = bundle.charge_options[rule.name] or {}
    check_pausable(rule, settings)
    rule.refusal = refusal_body.compile(rule.refuse, rule.name, rule.is_adaptive)
    rules[rule.name] = rule
    bind_all(bundle, rule, choices[i].limits, rule_options.names, { "live", "shadow" }, bound_limits, settings)
    bind_all(bundle, rule, choices[i].candidates, rule_options.candidate_names, { "candidate" }, bound_limits, settings)
  end
  return {
    note = settings.shared_only and unused_without_redis(bundle.rules) or nil,
    warnings = type(bundle.warnings) == "table" and bundle.warnings or {},
    split = split, split_position = split_position, match = match_call, bound_limits = bound_limits, rules = rules,
    headers = bundle.headers or "draft-11", used_attributes = bundle.used_attributes or {},
    version = bundle.version and string.format("%d", bundle.version) or "null",
    limits = bundle.limits, zones = bundle.zones or {}, scripts = bundle.scripts or {}, texts = bundle.texts or {},
  }
end

return M
