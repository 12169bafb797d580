-- A flood on one limit, in simulated time: arrivals at random, several nginx, Redis some time away. Reads one JSON line
-- for each flood from stdin, and writes one. Redis is the model itself.

local lib = arg[1]
package.path = lib .. "/?.lua;" .. package.path

local json = require "resty.headgate.rules.bundle_json"
local shed_rate = require "resty.headgate.engines.load_shedding.shed_rate"

local START = 1700000000000000 -- a multiple of a second

local function exponential(mean) return -mean * math.log(1 - math.random()) end

-- { allowed by arrival: tenths of a second, asked, allowed, arrived, by nginx }, all but of the first `skip` seconds.
local function flood(said)
  math.randomseed(said.seed)
  local model = require("resty.headgate.algorithms." .. said.limit.algorithm)
  local limit, kept = model.limit(said.limit.numbers, 1), nil
  local plan = shed_rate.plan(said.limit)
  if not plan then return { paced = false } end
  local members = said.members
  local states, clocks, rates, flights = {}, {}, {}, {}
  for i = 1, members do
    rates[i] = said.demand[i] / 1e6
    clocks[i] = START + (rates[i] > 0 and exponential(1 / rates[i]) or math.huge)
    flights[i] = { first = 1, last = 0 }
    local state = {}
    shed_rate.begin(state, START, said.believed or members)
    state[shed_rate.DEMAND] = rates[i] * said.error
    states[i] = state
  end
  local found = { asked = 0, allowed = 0, arrived = 0, tenths = {}, each = {}, paced = true }
  for k = 1, 10 do found.tenths[k] = 0 end
  for i = 1, members do found.each[i] = 0 end
  local finish, counted = START + said.seconds * 1e6, START + said.skip * 1e6
  while true do
    local i = 1
    for k = 2, members do
      if clocks[k] < clocks[i] then i = k end
    end
    local now, state, flight = clocks[i], states[i], flights[i]
    if now > finish then break end
    clocks[i] = now + exponential(1 / rates[i])
    while flight.first <= flight.last and flight[flight.first].answered <= now do
      local one = flight[flight.first]
      shed_rate.observe(plan, state, 1, one.facts, one.asked, one.answered)
      flight[flight.first] = nil
      flight.first = flight.first + 1
    end
    if now - state[shed_rate.DEMAND_MARK_AT] > 100000 then
      state[shed_rate.DEMAND_MARK_AT] = now
      shed_rate.update_sharers(plan, state, said.believed or members, now)
    end
    local counts = now >= counted
    if counts then found.arrived = found.arrived + 1 end
    if not shed_rate.flooded(plan, state, 0) or math.random() < shed_rate.chance(plan, state, now, 1) then
      shed_rate.note_request(plan, state, now, 1)
      local facts
      facts, kept = model.decide(limit, kept, math.floor(now + said.away / 2), 1, -1)
      flight.last = flight.last + 1
      flight[flight.last] = { facts = facts, asked = now, answered = now + said.away }
      if counts then
        found.asked = found.asked + 1
        if facts[1] == 1 then
          found.allowed = found.allowed + 1
          local tenth = math.floor((now - START) % said.span / said.span * 10) + 1
          found.tenths[tenth] = found.tenths[tenth] + 1
          found.each[i] = found.each[i] + 1
        end
      end
    end
  end
  return found
end

local function listed(numbers) return "[" .. table.concat(numbers, ",") .. "]" end

for line in io.lines() do
  local found = flood(json.decode(line))
  if found.paced then
    io.write(string.format('{"arrived":%d,"asked":%d,"allowed":%d,"tenths":%s,"each":%s}\n', found.arrived, found.asked,
      found.allowed, listed(found.tenths), listed(found.each)))
  else
    io.write("null\n")
  end
  io.flush()
end
