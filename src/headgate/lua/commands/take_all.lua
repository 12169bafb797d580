-- Several charges on several keys, of any algorithms, part by part. A part is one rule's charges, or plain ones. All
-- charges of the live parts are committed, or none. A part aside is by itself: committed by its own verdict whatever
-- the others say, and never in their way.
--
-- KEYS     for each part: its lockout, if it has one; its override, if it may have one; a count for each charge
-- ARGV     patience_us (-1 takes); commit: 1, or 0 to be told only and keep nothing, or 2 to be told ahead of a commit:
--          what is aside is kept, refusals are counted, what is live is not charged. Then for each part:
--            how many charges
--            its terms: "" of plain charges, else the letters a (aside), l (has a lockout), o (may be overridden)
--            of l: after, within_us, for_us
--            for each charge: algorithm, cost, the limit's own numbers
-- returns  for each charge what a take returns. Where another charge refused, or nothing was to be committed, one
--          that would have passed says so and tells how things stand, because nothing was taken. A part that is locked
--          out says -3 for allowed. An eighth element is the text of the override that decided.
--
-- A part that its own limits refuse counts one refusal. An override is a line for each limit, in their order:
-- algorithm, numbers, "|" and its text; "calendar" and an amount for a window of a calendar, whose edges are the
-- question's.
--
-- `models` and `keeps` are tables by algorithm, lockout among them if a part has one; the assembler puts them above
-- this line.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local patience_us, commit = tonumber(ARGV[1]), ARGV[2]
local at, named, n, pass = 3, 0, 0, true
local parts, charges, verdicts = {}, {}, {}
local LINE = "([%w_]+) ([^|\n]*)|([^\n]*)" -- of an override

while ARGV[at] do
  local part = { first = n + 1, last = n + ARGV[at], pass = true, left_us = 0 }
  local terms, own, own_key = ARGV[at + 1], nil, nil
  at = at + 2
  if terms ~= "" then
    part.aside = string.find(terms, "a", 1, true)
    if string.find(terms, "l", 1, true) then
      local model = models.lockout
      named = named + 1
      part.key, part.lockout = KEYS[named], model.limit(ARGV, at)
      local wrong
      part.before, wrong = keeps.lockout.load(part.key)
      if wrong then return wrong end
      part.after = model.settled(part.lockout, part.before, now_us)
      part.left_us = model.left_us(part.after, now_us)
      at = at + model.width
    end
    if string.find(terms, "o", 1, true) then
      named = named + 1
      own, own_key = redis.pcall("GET", KEYS[named]), KEYS[named]
      if own and (own.err or not string.find(own, LINE)) then return wrong_value(own_key, own) end
      own = own and string.gmatch(own, LINE)
    end
  end

  for i = part.first, part.last do
    named = named + 1
    local name = ARGV[at]
    local model, keep = models[name], keeps[name]
    if part.left_us > 0 then
      part.pass = false
    else
      local limit = model.limit(ARGV, at + 2)
      local charge = { key = KEYS[named], model = model, keep = keep, cost = tonumber(ARGV[at + 1]), limit = limit }
      if own then
        local algorithm, numbers, text = own()
        if algorithm == name then
          local words = {}
          for word in string.gmatch(numbers, "%S+") do words[#words + 1] = tonumber(word) and word end
          if #words ~= model.width then return wrong_value(own_key) end
          charge.limit, charge.text = model.limit(words, 1), text
        elseif algorithm == "calendar" and limit.period_us == 0 then
          limit.amount, charge.text = tonumber(numbers), text
          if not limit.amount then return wrong_value(own_key) end
        elseif not algorithm then
          own = nil
        end
      end
      local verdict, wrong
      charge.before, wrong = keep.load(charge.key, charge.limit, now_us)
      if wrong then return wrong end
      verdict, charge.after = model.decide(charge.limit, charge.before, now_us, charge.cost, patience_us)
      if verdict[1] ~= 1 then
        if verdict[1] == -2 then return { verdict } end
        part.pass = false
        if charge.cost > 0 then part.refused = true end
      end
      verdicts[i], charges[i] = verdict, charge
    end
    at = at + 2 + model.width
  end
  n = part.last
  if not part.aside then pass = pass and part.pass end
  parts[#parts + 1] = part
end

for _, part in ipairs(parts) do
  local keeps_it, passes = commit == "1", pass
  if part.aside then keeps_it, passes = commit ~= "0", part.pass end
  if part.left_us == 0 then
    for i = part.first, part.last do
      local charge = charges[i]
      if not (passes and keeps_it) and verdicts[i][1] == 1 then
        verdicts[i], charge.after = charge.model.decide(charge.limit, charge.before, now_us, 0, -1)
        verdicts[i][1], verdicts[i][3] = 1, 0
      end
      if charge.text then verdicts[i][8] = charge.text end
      if keeps_it and charge.after ~= charge.before then
        charge.keep.save(charge.key, charge.limit, charge.after, now_us)
      end
    end
  end
  if part.key then
    if commit ~= "0" then
      if part.refused then
        part.after = models.lockout.refused(part.lockout, part.after, now_us)
        part.left_us = models.lockout.left_us(part.after, now_us)
      end
      if part.after and part.after ~= part.before then
        keeps.lockout.save(part.key, part.lockout, part.after, now_us)
      end
    end
    if part.left_us > 0 then
      for i = part.first, part.last do verdicts[i] = { -3, 0, part.left_us, part.left_us, 0, now_us, 0 } end
    end
  end
end
return verdicts
