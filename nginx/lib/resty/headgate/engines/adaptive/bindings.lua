-- Binds the adaptive limit of a rule to its algorithm and to its places in the dict: once, for all calls.
--
--   rule, name        the rule; the name that it counts under
--   algorithm, module, settings     what moves the limit; the gate that enforces it
--   settings_id, algorithm_id       numbers by which a state knows whose it is
--   unit              what is limited, in words
--   priority, classes the class of the calls, of so many; 0 and 0 without priorities
--   head              what the names of its states begin with
--   bound_ns          when it was bound: the later one of two knows the newer settings

local clock = require "resty.headgate.clock"
local concurrency_gate = require "resty.headgate.adaptive.concurrency_gate"
local keys = require "resty.headgate.engines.redis.keys"
local rate_gate = require "resty.headgate.adaptive.rate_gate"

local M = {}

local RATE = 1 -- the number of the kind of limit, as Python writes it
local ALGORITHMS = { "adaptive_concurrency", "target_concurrency", "target_rate" }

-- Returns the number of the algorithm that moves a limit of this kind and target.
local function algorithm_id_of(kind, target_us)
  if kind == RATE then return 3 end
  return target_us > 0 and 2 or 1
end

function M.bind(bound_limit, prefix)
  local numbers, rule = bound_limit.limit.numbers, bound_limit.rule
  local kind, target_us = tonumber(numbers[1]), tonumber(numbers[3])
  local low, high, classes = tonumber(numbers[4]), tonumber(numbers[5]), tonumber(numbers[7])
  local algorithm_id = algorithm_id_of(kind, target_us)
  local algorithm = require("resty.headgate.adaptive." .. ALGORITHMS[algorithm_id])
  return {
    rule = rule, algorithm = algorithm, algorithm_id = algorithm_id,
    module = kind == RATE and rate_gate or concurrency_gate,
    settings = algorithm.settings(low, high, target_us / 1000000, tonumber(bound_limit.limit.quantile)),
    settings_id = ngx.crc32_long(table.concat({ numbers[1], numbers[2], numbers[3], numbers[4], numbers[5] }, " ")),
    unit = kind == RATE and "calls per second" or "calls in flight",
    priority = tonumber(numbers[6]), classes = classes > 1 and classes or 0,
    head = "a:" .. keys.head(prefix, "adaptive", rule.name), bound_ns = clock.monotonic_us() * 1000,
    deadline = bound_limit.options.deadline, is_shadow = bound_limit.shadow ~= nil,
  }
end

return M
