-- Leases of slots and the queue of callers that wait for one: every command on a key of slots.
--
-- KEYS[1]  a sorted set, which holds everything of a key:
--            h<fence>   when this lease expires          q<ticket>  -ticket: its place in the queue
--            t<ticket>  when this ticket expires         fence      -(the lowest number never given)
--            stamp      when a lease or ticket was last written
--          Times are above zero and numbers below, and every place is above "fence". So live entries are one range,
--          those behind a ticket are another, and "stamp" is live only if the clock stepped back.
-- KEYS[2]  its pause, if it can be paused: while it lasts no slot is given, and callers that wait keep their places
-- ARGV     verb, amount, ttl_us; then by the verb:
--            acquire ticket|"" wait     returns the seven numbers of a take (mark: the fence, or how many have to go
--                                       first), and for a caller that must wait the ticket for its next call. Without
--                                       wait (0) a ticket is given up.
--            renew fence                returns 1, expires_us; or 0, 0 if that lease is gone
--            release fence              returns 1; or 0 if that lease is gone
--            leave ticket               returns 1; or 0 if there was no such ticket
--            reset                      returns 1; all leases and tickets end, the numbers continue
--            peek                       returns the seven numbers
--          While paused, allowed is -4, and two more numbers follow: the ticket or 0, and what is left of the pause.
--          or the error of wrong_value.lua, also where a sorted set has no fence; reset deletes whatever is there
--
-- `model` is the model of slots; the assembler inserts it above.
local call, key, verb, number = redis.call, KEYS[1], ARGV[1], ARGV[4]
local fence_score, error_reply = redis.pcall("ZSCORE", key, "fence"), nil
if fence_score then
  if fence_score.err or tonumber(fence_score) > 0 then error_reply = wrong_value(key, fence_score) end
elseif call("ZCOUNT", key, "-inf", "+inf") > 0 then
  error_reply = wrong_value(key)
end
if error_reply then
  if verb ~= "reset" or string.sub(error_reply.err, 1, 9) ~= "WRONGTYPE" then return error_reply end
  call("DEL", key)
  if KEYS[2] then call("DEL", KEYS[2]) end
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
local paused_us = 0
if KEYS[2] then
  local state, pause_error = load_pause(KEYS[2], now_us)
  if pause_error and verb ~= "reset" then return pause_error end
  paused_us = pause.left_us(state, now_us)
end

-- Returns whether this lease or ticket has not expired.
local function is_alive(member)
  local expires = call("ZSCORE", key, member)
  return expires and model.alive(tonumber(expires), at_us)
end

-- Removes expired entries.
local function prune()
  for _, member in ipairs(call("ZRANGEBYSCORE", key, "(0", at)) do
    if member ~= "stamp" then call("ZREM", key, member, "q" .. string.sub(member, 2)) end
  end
end

-- Lets the key live as long as a lease or ticket, and for a day as its last number.
local function expire()
  local last = call("ZREVRANGE", key, 0, 0, "WITHSCORES")[2]
  local fresh = model.unpack_fresh(call("ZSCORE", key, "fence"))
  local dead_at_ms = model.dead_at_ms(tonumber(last or 0), fresh, now_us, true)
  if dead_at_ms then call("PEXPIREAT", key, dead_at_ms) else call("DEL", key) end
end

-- Decides on a slot for a caller, with its place in the queue if it has a ticket.
local function decide_slot(cost, ticket)
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

-- Returns the refusal of a slot for as long as the pause lasts; of a peek's outcome.
local paused_verdict = paused_us > 0 and function(verdict)
  local place = verdict[1] == 1 and 1 or verdict[7]
  return { -4, verdict[2], math.max(paused_us, verdict[3]), math.max(paused_us, verdict[4]), 0, now_us, place, 0,
    paused_us }
end

if verb == "acquire" then
  local ticket = number ~= "" and is_alive("t" .. number) and number
  if ticket then call("ZREM", key, "t" .. ticket) end -- Count only the others.
  local fresh, verdict, fence, expires_us = decide_slot(paused_us > 0 and 0 or 1, ticket)
  if paused_us > 0 then verdict = paused_verdict(verdict) end
  if ticket and (fence or ARGV[5] ~= "1") then call("ZREM", key, "q" .. ticket) end
  -- If nothing is granted, no expired entry is removed: it may be alive again if the clock is set back.
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
  if not is_alive("h" .. number) then return { 0, 0 } end
  local expires_us = model.renewed_us(limit, at_us)
  call("ZADD", key, at, "stamp", expires_us, "h" .. number)
  expire()
  return { 1, expires_us }
elseif verb == "release" then
  if not is_alive("h" .. number) then return 0 end
  call("ZREM", key, "h" .. number)
  expire()
  return 1
elseif verb == "reset" then
  call("DEL", key)
  if fence_score then
    call("ZADD", key, fence_score, "fence")
    expire()
  end
  if KEYS[2] then call("DEL", KEYS[2]) end
  return 1
end
local _, verdict = decide_slot(0)
return paused_us > 0 and paused_verdict(verdict) or verdict
