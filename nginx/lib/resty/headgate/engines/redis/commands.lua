-- Questions as bytes: what is asked of the server for charges, and how it is cut into parts. Pure. The twin of
-- engines/redis/protocol.py and engines/charge_options.py.
--
-- Nearly all of a question is known when a plate is compiled; only the key and, rarely, the cost change. So what a hand
-- says is packed once and kept on it (hand.redis), and a take of one unit is five texts put together.
--
--   alone   a charge by itself is no more than a take
--   terms   what its part must say; nil of plain charges, which are all or none anyway
--
-- Charges that look at nothing but their counts, and are of one algorithm, may be joined with those of other calls: one
-- script run decides them all, one call after the other. Such a question is packed when it is known how it travels.
--
-- Laws (tests/nginx/engines/redis/test_commands.py, test_joined.py): the bytes are those that Python would send for the
-- same charges, but for a patience that is left out where nobody has one; and who is joined with others is told what he
-- would have been told by himself at that instant, after those before him.

local naming = require "resty.headgate.engines.redis.keys"
local resp = require "resty.headgate.engines.redis.resp"
local sha256 = require "resty.headgate.text.sha256"

local concat, find, sub = table.concat, string.find, string.sub
local bulk, bulks, number = resp.bulk, resp.bulks, resp.number

local M = {}

local LONGEST = 200 -- bytes of a key that is not hashed
local EXACT = 2 ^ 53 -- more can never pass either
local TAKES = bulk("-1") -- nobody has patience here
local MOST = 256 -- counts in one question: a script has room for some thousand values at once

M.TOLD, M.COMMIT, M.AHEAD = 0, 1, 2

-- The key between the braces.
local function escaped(key)
  if #key <= LONGEST and not find(key, "[%c %%{}]") then return key end
  return sub(naming.tagged("", key, sha256), 1, -2)
end

M.escaped = escaped

local function start(words, sha, keys)
  return "*" .. words .. "\r\n$7\r\nEVALSHA\r\n$40\r\n" .. sha .. "\r\n" .. bulk(keys .. "")
end

-- What is said before a part's charges, and the heads of what is kept beside their counts.
local function say(known, options, prefix)
  local letters, words = options.shadow and "a" or "", { "" }
  if options.lockout then
    letters = letters .. "l"
    for i, each in ipairs(options.lockout) do words[i + 1] = number(each) end
    known.models[2] = "lockout"
    known.beside[1] = naming.head(prefix, "lockout", options.rule)
  end
  if options.overrides then
    letters = letters .. "o"
    known.override = naming.head(prefix, "override", options.rule)
    known.beside[#known.beside + 1] = known.override
  end
  words[1] = letters
  known.said, known.said_words = bulks(words), #words
end

-- All that is known of a hand's questions, put on the hand. `scripts` are the plate's, by name.
function M.bind(bound_limit, scripts, prefix)
  local limit, options = bound_limit.limit, bound_limit.options
  local ruled = options.lockout ~= nil or options.overrides or false
  local known = {
    algorithm = bulk(limit.algorithm), args = bulks(limit.numbers), width = #limit.numbers, head = bound_limit.head,
    calendar = limit.calendar ~= nil, alone = not ruled, length = #bound_limit.head + 1,
    options = (ruled or options.shadow) and options or nil, models = { limit.algorithm }, beside = {},
    said = bulk(""), said_words = 1,
    take = scripts["take " .. limit.algorithm], back = scripts["refund " .. limit.algorithm],
    together = scripts["take_together " .. limit.algorithm],
    calls = not limit.calendar and scripts["take_calls " .. limit.algorithm] or nil,
  }
  known.one = known.args .. bulk("1")
  if known.options then say(known, known.options, prefix) end
  known.uses = table.concat(known.models, " ") .. " "
  if known.take then
    known.start = start(4 + known.width, known.take, 1) .. "$"
    known.start_of_more = start(5 + known.width, known.take, 1) .. "$"
    known.middle, known.finish = "\r\n" .. bound_limit.head, "}\r\n" .. known.args
  end
  bound_limit.redis = known
  return known
end

-- A charge by itself. `numbers` are a calendar's of now; nil: the limit's own.
function M.take(known, name, cost, numbers)
  if cost == 1 and not numbers then
    return known.start .. known.length + #name .. known.middle .. name .. known.finish
  end
  local args = numbers and bulks(numbers) or known.args
  local head = cost == 1 and known.start or known.start_of_more
  local more = cost ~= 1 and bulk(number(cost < EXACT and cost or EXACT)) or ""
  return head .. known.length + #name .. known.middle .. name .. "}\r\n" .. args .. more
end

-- Where the part ends that begins here: one rule's charges, or as many plain ones as follow each other.
local function part_end(charges, first)
  local options, key = charges[first].bound_limit.redis.options, charges[first].key
  local last, following = first, charges[first + 1]
  while following and following.bound_limit.redis.options == options and (options == nil or following.key == key) do
    last = last + 1
    following = charges[last + 1]
  end
  return last
end

local function put_key(named, head, name)
  named[#named + 1] = "$" .. #head + #name + 1 .. "\r\n" .. head .. name .. "}\r\n"
end

-- The count of a charge, as a word.
local function counted(known, name) return "$" .. known.length + #name .. "\r\n" .. known.head .. name .. "}\r\n" end

local texts = {}

-- Several charges of bound hands that are alike: of one algorithm, and nothing but their counts is looked at. They are
-- committed, whatever `commit` says.
function M.alike(charges, sha, _, engine, at_us)
  local count, key, name = #charges, nil, nil
  for i = 1, count do
    local charge = charges[i]
    local known, cost = charge.bound_limit.redis, charge.cost
    if charge.key ~= key then key, name = charge.key, escaped(charge.key) end
    texts[i] = counted(known, name)
    if cost == 1 and not known.calendar then
      texts[count + i] = known.one
    else
      local args = known.calendar and bulks(engine:numbers(charge.bound_limit.limit, at_us)) or known.args
      texts[count + i] = args .. bulk(number(cost < EXACT and cost or EXACT))
    end
  end
  local words = 3 + count * (2 + charges[1].bound_limit.redis.width)
  return start(words, sha, count) .. concat(texts, "", 1, 2 * count)
end

-- A question of charges that are alike, which may be joined with others that go by the script `calls`; nil if it may
-- not. `sha` is the script that it goes by alone; `scripts` are texts by their SHA1.
function M.joinable(charges, sha, scripts)
  local calls = charges[1].bound_limit.redis.calls
  for i = 2, #charges do
    if charges[i].bound_limit.redis.calls ~= calls then return nil end
  end
  return calls and { charges = charges, sha = sha, calls = calls, text = scripts[calls] }
end

-- Its bytes, if it goes alone.
function M.packed(question)
  local packed = question.packed
  if packed then return packed end
  local charges = question.charges
  local charge = charges[1]
  if charges[2] then
    packed = M.alike(charges, question.sha)
  else
    packed = M.take(charge.bound_limit.redis, escaped(charge.key), charge.cost)
  end
  question.packed = packed
  return packed
end

local small = {} -- words of small numbers

local function word(n)
  local found = small[n]
  if not found then
    found = bulk(n .. "")
    small[n] = found
  end
  return found
end

-- Adds a call to a question of several; false if it has no place there.
local function add(question, charges)
  local seen, words, said, key, name = question.seen, question.words, question.said + 1, nil, nil
  if question.many + #charges > MOST then return false end
  words[said] = word(#charges)
  for i = 1, #charges do
    local charge = charges[i]
    local known, cost = charge.bound_limit.redis, charge.cost
    if charge.key ~= key then key, name = charge.key, escaped(charge.key) end
    local text = counted(known, name)
    local n = seen[text]
    if not n then
      n = question.many + 1
      question.many, seen[text], question.counts[n], question.limits[n] = n, n, text, known.args
    elseif question.limits[n] ~= known.args then
      return false -- the same count under another limit: the rule has just changed
    end
    said = said + 1
    words[said] = word(cost == 1 and n or -n)
    if cost ~= 1 then
      said = said + 1
      words[said] = bulk(number(cost < EXACT and cost or EXACT))
    end
  end
  question.said = said
  return true
end

-- One question of those among several that can be joined with the first of them, and which of its calls each is (false:
-- none); nil if there are none.
function M.joined(all)
  local calls = all[1].calls
  if not calls then return nil end
  local question = { seen = {}, counts = {}, limits = {}, words = {}, many = 0, said = 0 }
  local places, count = {}, 0
  for i = 1, #all do
    places[i] = false
    if all[i].calls == calls and add(question, all[i].charges) then
      count = count + 1
      places[i] = count
    end
  end
  if count < 2 then return nil end
  local many, said = question.many, question.said
  local head = start(4 + many * (1 + all[1].charges[1].bound_limit.redis.width) + said, calls, many)
  local limits, words = concat(question.limits), concat(question.words, "", 1, said)
  return head .. concat(question.counts) .. word(count) .. limits .. words, places
end

-- Several charges of bound hands in one question. The engine tells the numbers of a calendar's limit at that instant.
function M.together(charges, sha, commit, engine, at_us)
  local named, words, count = {}, { TAKES, bulk(commit .. "") }, 2
  local first = 1
  while charges[first] do
    local last, opening = part_end(charges, first), charges[first]
    local says, name = opening.bound_limit.redis, escaped(opening.key)
    for _, head in ipairs(says.beside) do put_key(named, head, name) end
    words[#words + 1] = bulk(last - first + 1 .. "") .. says.said
    count = count + 1 + says.said_words
    for i = first, last do
      local charge = charges[i]
      local known, cost = charge.bound_limit.redis, charge.cost
      put_key(named, known.head, i == first and name or escaped(charge.key))
      local args = known.calendar and bulks(engine:numbers(charge.bound_limit.limit, at_us)) or known.args
      words[#words + 1] = known.algorithm .. bulk(number(cost < EXACT and cost or EXACT)) .. args
      count = count + 2 + known.width
    end
    first = last + 1
  end
  return start(3 + #named + count, sha, #named) .. table.concat(named) .. table.concat(words)
end

-- One script on one key.
function M.run(sha, key, words) return start(4 + #words, sha, 1) .. bulk(key) .. bulks(words) end

-- What is given back of a charge: as much as it cost, by what it left behind.
function M.refund(charge, name, outcome, numbers)
  local known, cost = charge.bound_limit.redis, charge.cost
  local words = { cost, 0, cost, outcome[6], outcome[4], outcome[5], outcome[7], 0 }
  for _, each in ipairs(numbers or charge.bound_limit.limit.numbers) do words[#words + 1] = each end
  return M.run(known.back, known.head .. name .. "}", words)
end

return M
