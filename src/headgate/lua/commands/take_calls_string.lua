-- Several calls, one after the other, each of one charge or more, all of one algorithm whose state fits one string:
-- what as many runs of take_string.lua and take_together.lua would say, in one. A count that several calls charge is
-- read once and written once, and starting a script costs more than a decision.
--
-- KEYS     the counts, each once
-- ARGV     how many calls; for each count its limit's own numbers; for each call how many charges it has, and for each
--          charge the number of its count: below zero, where the cost follows, which is 1 otherwise
-- returns  for each call what a take returns, or take_together. It is an error where a count of it holds something
--          that is not ours: the other calls are decided as if that call were not there
--
-- To MGET a key that holds something else is like one that was never seen. Only GET says what is wrong; so it is asked
-- before a count that nobody has seen is begun.
--
-- `model` is the algorithm's; the assembler puts it above this line.
local call = redis.call
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local texts = call("MGET", _G.unpack(KEYS)) -- model.unpack is another one
local limits, befores, states, wrong, at = {}, {}, {}, {}, 2

for i = 1, #KEYS do
  local limit, text = model.limit(ARGV, at), texts[i]
  if text then
    befores[i] = model.unpack(text, limit, now_us)
    states[i] = befores[i]
  else
    text = redis.pcall("GET", KEYS[i])
  end
  if text and not befores[i] then wrong[i] = wrong_value(KEYS[i], text) end
  limits[i], at = limit, at + model.width
end

local counts, costs, verdicts, afters = {}, {}, {}, {}

-- The call whose charges stand in these lists.
local function answer(count)
  local row, pass = { now_us }, true
  for i = 1, count do
    local n = counts[i]
    if wrong[n] then return wrong[n] end
    local verdict, after = model.decide(limits[n], states[n], now_us, costs[i], -1)
    if verdict[1] == 1 then
      local last = i * 4
      row[last - 2], row[last - 1], row[last], row[last + 1] = verdict[2], verdict[4], verdict[5], verdict[7]
    elseif verdict[1] == -2 then
      return count == 1 and verdict or { verdict }
    else
      pass = false
    end
    verdicts[i], afters[i] = verdict, after
  end
  if pass or count == 1 then
    for i = 1, count do states[counts[i]] = afters[i] end
    return count == 1 and verdicts[1] or row
  end
  local told = {}
  for i = 1, count do
    local n, verdict, after = counts[i], verdicts[i], afters[i]
    if verdict[1] == 1 then
      verdict, after = model.decide(limits[n], states[n], now_us, 0, -1)
      verdict[1], verdict[3] = 1, 0
    end
    told[i], states[n] = verdict, after
  end
  return told
end

local answers = {}
for i = 1, ARGV[1] + 0 do
  local count = ARGV[at] + 0
  for j = 1, count do
    at = at + 1
    local n = ARGV[at] + 0
    if n < 0 then
      at = at + 1
      counts[j], costs[j] = -n, ARGV[at] + 0
    else
      counts[j], costs[j] = n, 1
    end
  end
  at = at + 1
  answers[i] = answer(count)
end

for i = 1, #KEYS do
  local state, limit = states[i], limits[i]
  if state ~= befores[i] then
    local ttl_ms = model.ttl_ms(limit, state, now_us)
    if ttl_ms > 0 then
      call("SET", KEYS[i], model.pack(state, limit), "PX", ttl_ms)
    else
      call("DEL", KEYS[i])
    end
  end
end
return answers
