-- Runs engines/prefetch/prefetched_units.lua outside of nginx, so that it can be compared with Python's.
--
--   luajit stock.lua LIB
--
-- Each line is a question in JSON, and each answers one line of JSON.
--
--   {"ask": "bound", "limit", "units"}                        U
--   {"ask": "receipts", "limit", "facts", "extra", "lefts"}   the receipt for each number of units left, of a stock
--                                                             that was written and read again

package.path = arg[1] .. "/?.lua;" .. package.path

local json = require "resty.headgate.text.json"
local stock = require "resty.headgate.engines.prefetch.prefetched_units"

local answers = {}

function answers.bound(question) return string.format("%.0f", stock.bound(question.limit, question.units)) end

function answers.receipts(question)
  local facts, spread, rate = question.facts, stock.spread(question.limit)
  for i = 1, 7 do facts[i] = tonumber(facts[i]) end
  local made = stock.new {
    since_us = 5, until_us = 9, told = facts[2], reset_us = facts[4], at_us = facts[6], mark = facts[7],
    extra = tonumber(question.extra), cost = 1, lately = 0, counter = "l:u:1:2:3",
  }
  local read, found = stock.read(made.text), {}
  for i, left in ipairs(question.lefts) do
    local words = stock.receipt({ spread = spread, rate = rate }, read, tonumber(left))
    for j = 1, #words do words[j] = string.format("%.0f", words[j]) end
    found[i] = "[" .. table.concat(words, ",") .. "]"
  end
  return "[" .. table.concat(found, ",") .. "]"
end

for line in io.lines() do
  local question = json.decode(line)
  io.write(answers[question.ask](question), "\n")
  io.flush()
end
