-- Leases of slots and the line of those who wait for one: everything that is done with a key of slots.
--
-- KEYS[1]  a sorted set, and all that a key has:
--            h<fence>   when this lease expires          q<ticket>  -ticket: its place in line
--            t<ticket>  when this ticket expires         fence      -(the least number never given)
--            stamp      when a lease or ticket was last written
--          Above zero are times and below zero numbers, and every place lies above "fence". So what is alive is
--          one range, those behind a ticket are another, and "stamp" is alive only if the clock stepped back.
-- ARGV     verb, amount, ttl_us; then by the verb:
--            acquire ticket|"" wait     returns the seven facts of a take (mark: the fence, or how many have to go
--                                       first), and for one who must wait the ticket to ask with again. Without
--                                       wait (0) a ticket is given up.
--            renew fence                returns 1, expires_us; or 0, 0 if that lease is gone
--            release fence              returns 1; or 0 if that lease is gone
--            leave ticket               returns 1; or 0 if there was no such ticket
--            reset                      returns 1; all leases and tickets end, the numbers go on
--            peek                       returns the seven facts
--          or the error of wrong_value.lua, also where a sorted set has no fence; reset deletes whatever there is
--
-- `model` is the model of slots; the assembler puts it above this line.
local call, key, verb, number = redis.call, KEYS[1], ARGV[1], ARGV[4]
local fence_score, wrong = redis.pcall("ZSCORE", key, "fence"), nil
if fence_score then
  if fence_score.err or tonumber(fence_score) > 0 then wrong = wrong_value(key, fence_score) end
elseif call("ZCOUNT", key, "-inf", "+inf") > 0 then
  wrong = wrong_value(key)
end
if wrong then
  if verb ~= "reset" or string.sub(wrong.err, 1, 9) ~= "WRONGTYPE" then return wrong end
  call("DEL", key)
  return 1
end
if verb == "leave" then
  call("ZREM", key, "q" .. number)
  return call("ZREM", key, "t" .. number)
end
local time = call("TIME")
local now_us = time[1] * 1000000 + time[2]
local limit = model.limit(ARGV, 2)

local stamp_us = tonumber(call("ZSCORE", key, "stamp") or 0)
local stepped_us = model.stepped_us(stamp_us, now_us)
if stepped_us > 0 then
  for _, member in ipairs(call("ZRANGEBYSCORE", key, "(0", "+inf")) do
    call("ZINCRBY", key, string.format("-%.0f", stepped_us), member)
  end
  stamp_us = now_us
end
local at_us = model.as_at(stamp_us, now_us)
local at = string.format("%.0f", at_us)

local function lives(member)
  local expires = call("ZSCORE", key, member)
  return expires and model.alive(tonumber(expires), at_us)
end

-- Remove what is dead.
local function prune()
  for _, member in ipairs(call("ZRANGEBYSCORE", key, "(0", at)) do
    if member ~= "stamp" then call("ZREM", key, member, "q" .. string.sub(member, 2)) end
  end
end

-- Let the key live as long as it matters: a lease, a ticket, and for a day the last number.
local function expire()
  local last = call("ZREVRANGE", key, 0, 0, "WITHSCORES")[2]
  local fresh = model.unpack_fresh(call("ZSCORE", key, "fence"))
  local dead_at_ms = model.dead_at_ms(tonumber(last or 0), fresh, now_us, true)
  if dead_at_ms then call("PEXPIREAT", key, dead_at_ms) else call("DEL", key) end
end

local function judge(cost, ticket)
  local state = { behind = 0, opens_us = 0, fresh = model.unpack_fresh(fence_score) }
  state.alive = call("ZCOUNT", key, "(" .. at, "+inf")
  state.last_us = tonumber(call("ZREVRANGE", key, 0, 0, "WITHSCORES")[2] or 0)
  if ticket then
    state.behind = call("ZCOUNT", key, "(" .. fence_score, "(-" .. ticket)
    for _, member in ipairs(call("ZRANGEBYSCORE", key, "(0", at)) do
      local number_of_dead = string.match(member, "^t(%d+)$")
      if number_of_dead and tonumber(number_of_dead) > tonumber(ticket) then state.behind = state.behind - 1 end
    end
  end
  local turn = model.turn(limit, state.alive)
  if turn then
    local opens = call("ZRANGEBYSCORE", key, "(" .. at, "+inf", "WITHSCORES", "LIMIT", turn, 1)
    state.opens_us = tonumber(opens[2])
  end
  return state.fresh, model.decide(limit, state, now_us, cost, at_us)
end

if verb == "acquire" then
  local ticket = number ~= "" and lives("t" .. number) and number
  if ticket then call("ZREM", key, "t" .. ticket) end -- Only the others count.
  local fresh, verdict, fence, expires_us = judge(1, ticket)
  if ticket and (fence or ARGV[5] ~= "1") then call("ZREM", key, "q" .. ticket) end
  -- Where nothing is given, nothing that is dead is removed: it may live again if the clock is set back.
  if fence then
    prune()
    local member = string.format("h%.0f", fence)
    call("ZADD", key, at, "stamp", model.pack_fresh(fence), "fence", expires_us, member)
    expire()
  elseif ARGV[5] == "1" then
    prune()
    local drawn, until_us = model.draw(fresh, at_us)
    if ticket then
      call("ZADD", key, at, "stamp", until_us, "t" .. ticket)
    else
      ticket = string.format("%.0f", drawn)
      call("ZADD", key, at, "stamp", model.pack_fresh(drawn), "fence")
      call("ZADD", key, until_us, "t" .. ticket, "-" .. ticket, "q" .. ticket)
    end
    verdict[8] = tonumber(ticket)
    expire()
  end
  return verdict
elseif verb == "renew" then
  if not lives("h" .. number) then return { 0, 0 } end
  local expires_us = model.renewed_us(limit, at_us)
  call("ZADD", key, at, "stamp", expires_us, "h" .. number)
  expire()
  return { 1, expires_us }
elseif verb == "release" then
  if not lives("h" .. number) then return 0 end
  call("ZREM", key, "h" .. number)
  expire()
  return 1
elseif verb == "reset" then
  call("DEL", key)
  if fence_score then
    call("ZADD", key, fence_score, "fence")
    expire()
  end
  return 1
end
local _, verdict = judge(0)
return verdict
