-- A flood on one limit, in simulated time: arrivals at random, several nginx, Redis some time away. Reads one JSON line
-- for each flood from stdin, and writes one. Redis is the model itself.

local lib = arg[1]
package.path = lib .. "/?.lua;" .. package.path

local json = require "resty.headgate.rules.bundle_json"
local shed_rate = require "resty.headgate.engines.load_shedding.shed_rate"

local START = 1700000000000000 -- a multiple of a second

local function exponential(mean) return -mean * math.log(1 - math.random()) end

-- { allowed by arrival: tenths of a second, asked, allowed, arrived, by nginx }, all but of the first `skip` seconds.
local function flood(args)
  math.randomseed(args.seed)
  local model = require("resty.headgate.algorithms." .. args.limit.algorithm)
  local limit, kept = model.limit(args.limit.numbers, 1), nil
  local plan = shed_rate.plan(args.limit)
  if not plan then return { paced = false } end
  local members = args.members
  local states, clocks, rates, flights = {}, {}, {}, {}
  for i = 1, members do
    rates[i] = args.demand[i] / 1e6
    clocks[i] = START + (rates[i] > 0 and exponential(1 / rates[i]) or math.huge)
    flights[i] = { first = 1, last = 0 }
    local state = {}
    shed_rate.begin(state, START, args.believed or members)
    state[shed_rate.DEMAND] = rates[i] * args.error
    states[i] = state
  end
  local found = { requests = 0, allowed = 0, arrived = 0, tenths = {}, each = {}, paced = true }
  for k = 1, 10 do found.tenths[k] = 0 end
  for i = 1, members do found.each[i] = 0 end
  local finish, counted = START + args.seconds * 1e6, START + args.skip * 1e6
  while true do
    local i = 1
    for k = 2, members do
      if clocks[k] < clocks[i] then i = k end
    end
    local now, state, flight = clocks[i], states[i], flights[i]
    if now > finish then break end
    clocks[i] = now + exponential(1 / rates[i])
    while flight.first <= flight.last and flight[flight.first].answered_at <= now do
      local one = flight[flight.first]
      shed_rate.observe(plan, state, 1, one.outcome, one.requested_at, one.answered_at)
      flight[flight.first] = nil
      flight.first = flight.first + 1
    end
    if now - state[shed_rate.DEMAND_MARK_AT] > 100000 then
      state[shed_rate.DEMAND_MARK_AT] = now
      shed_rate.update_sharers(plan, state, args.believed or members, now)
    end
    local counts = now >= counted
    if counts then found.arrived = found.arrived + 1 end
    if not shed_rate.flooded(plan, state, 0) or math.random() < shed_rate.chance(plan, state, now, 1) then
      shed_rate.note_request(plan, state, now, 1)
      local outcome
      outcome, kept = model.decide(limit, kept, math.floor(now + args.away / 2), 1, -1)
      flight.last = flight.last + 1
      flight[flight.last] = { outcome = outcome, requested_at = now, answered_at = now + args.away }
      if counts then
        found.requests = found.requests + 1
        if outcome[1] == 1 then
          found.allowed = found.allowed + 1
          local tenth = math.floor((now - START) % args.span / args.span * 10) + 1
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
    io.write(string.format('{"arrived":%d,"requests":%d,"allowed":%d,"tenths":%s,"each":%s}\n', found.arrived, found.requests,
      found.allowed, listed(found.tenths), listed(found.each)))
  else
    io.write("null\n")
  end
  io.flush()
end
