-- Runs engines/prefetch/prefetched_units.lua outside of nginx, so that it can be compared with Python's.
--
--   luajit prefetched_units.lua LIB
--
-- Each line is a question in JSON, and each answers one line of JSON.
--
--   {"verb": "bound", "limit", "units"}                        U
--   {"verb": "receipts", "limit", "outcome", "extra", "lefts"}   the receipt for each number of units left, of units
--                                                             that was written and read again

package.path = arg[1] .. "/?.lua;" .. package.path

local json = require "resty.headgate.rules.bundle_json"
local prefetched_units = require "resty.headgate.engines.prefetch.prefetched_units"

local answers = {}

function answers.bound(question) return string.format("%.0f", prefetched_units.max_units(question.limit, question.units)) end

function answers.receipts(question)
  local outcome, period_us, amount = question.outcome, unpack(question.limit.drain or { 0, 1 })
  for i = 1, 7 do outcome[i] = tonumber(outcome[i]) end
  local made = prefetched_units.new {
    since_us = 5, until_us = 9, remaining = outcome[2], reset_us = outcome[4], at_us = outcome[6], mark = outcome[7],
    extra = tonumber(question.extra), cost = 1, recent_demand = 0, counter = "l:u:1:2:3",
  }
  local read, found = prefetched_units.read(made.text), {}
  for i, left in ipairs(question.lefts) do
    local words = prefetched_units.receipt({ drain_period_us = period_us, drain_amount = amount }, read, tonumber(left))
    for j = 1, #words do words[j] = string.format("%.0f", words[j]) end
    found[i] = "[" .. table.concat(words, ",") .. "]"
  end
  return "[" .. table.concat(found, ",") .. "]"
end

for line in io.lines() do
  local question = json.decode(line)
  io.write(answers[question.verb](question), "\n")
  io.flush()
end
