-- Decides several charges on several keys, of any algorithms, rule by rule. A part is one rule's charges, or charges
-- without a rule. All charges of the live parts are committed, or none. A shadow part is independent: committed by its
-- own verdict whatever the others return, and never in their way.
--
-- KEYS     for each part: its lockout, if it has one; its override, if it may have one; its pause, if it can be
--          paused; a count for each charge
-- ARGV     patience_us (-1 takes); commit: 1, or 0 to decide only and store nothing, or 2 to check before a commit:
--          shadow parts are committed, refusals are counted, live parts are not charged. Then for each part:
--            how many charges
--            its options: "" of charges without a rule, else the letters a (shadow), l (has a lockout), o (overrides),
--            p (can be paused)
--            of l: after, within_us, for_us
--            for each charge: algorithm, cost, the numbers of the limit
-- returns  for each charge the reply of a take. If another charge refused, or nothing was to be committed, a charge
--          that would have passed returns allowed and the state without it, because nothing was taken. A part that is
--          locked out returns -3 for allowed. An eighth element is the line of the override that decided. A charge of a
--          paused part returns -4 for allowed if it is refused, -5 if it is allowed after the pause, and as its eighth
--          element how long the pause still lasts; its times include that, and at_us is what the key's clock shows.
--
-- A part that its own limits refuse counts one refusal. An override has a line for each limit, in their order:
-- algorithm, numbers, "|" and its text; "calendar" and an amount for a calendar window, whose edges are those of the
-- request.
--
-- `models` and `storages` are tables by algorithm, with lockout if a part has one, and `pause` with pause_storage if
-- a part can be paused; the assembler inserts them above.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local patience_us, commit = tonumber(ARGV[1]), ARGV[2]
local arg_index, key_index, charge_count, pass = 3, 0, 0, true
local parts, charges, verdicts = {}, {}, {}
local OVERRIDE_LINE = "([%w_]+) ([^|\n]*)|([^\n]*)"

while ARGV[arg_index] do
  local part = { first = charge_count + 1, last = charge_count + ARGV[arg_index], pass = true, locked_us = 0,
    paused_us = 0 }
  local options, override, override_key = ARGV[arg_index + 1], nil, nil
  arg_index = arg_index + 2
  if options ~= "" then
    part.is_shadow = string.find(options, "a", 1, true)
    if string.find(options, "l", 1, true) then
      local model = models.lockout
      key_index = key_index + 1
      part.key, part.lockout = KEYS[key_index], model.limit(ARGV, arg_index)
      local error_reply
      part.before, error_reply = storages.lockout.load(part.key)
      if error_reply then return error_reply end
      part.after = model.current_state(part.lockout, part.before, now_us)
      part.locked_us = model.left_us(part.after, now_us)
      arg_index = arg_index + model.width
    end
    if string.find(options, "o", 1, true) then
      key_index = key_index + 1
      override, override_key = redis.pcall("GET", KEYS[key_index]), KEYS[key_index]
      if override and (override.err or not string.find(override, OVERRIDE_LINE)) then
        return wrong_value(override_key, override)
      end
      override = override and string.gmatch(override, OVERRIDE_LINE)
    end
    if string.find(options, "p", 1, true) then
      key_index = key_index + 1
      local error_reply
      part.pause_key = KEYS[key_index]
      part.pause, error_reply = load_pause(part.pause_key, now_us)
      if error_reply then return error_reply end
      part.paused_us = pause.left_us(part.pause, now_us)
    end
  end
  -- A pause refuses takes; callers with enough patience are served after it.
  local left_patience_us = patience_us
  if part.paused_us > 0 then
    left_patience_us = math.max(-1, patience_us - part.paused_us)
    part.waits = left_patience_us >= 0
    part.pass = part.waits
  end

  for i = part.first, part.last do
    key_index = key_index + 1
    local name = ARGV[arg_index]
    local model, storage = models[name], storages[name]
    if part.locked_us > 0 then
      part.pass = false
    else
      local limit = model.limit(ARGV, arg_index + 2)
      local cost = tonumber(ARGV[arg_index + 1])
      local charge = { key = KEYS[key_index], model = model, storage = storage, cost = cost, limit = limit,
        at_us = now_us }
      if part.pause then charge.at_us = pause.clock_us(part.pause, now_us, model.has_edges) end
      if override then
        local algorithm, numbers, text = override()
        local line = algorithm and algorithm .. " " .. numbers .. "|" .. text
        if algorithm == name then
          local limit_args = {}
          for arg in string.gmatch(numbers, "%S+") do limit_args[#limit_args + 1] = tonumber(arg) and arg end
          if #limit_args ~= model.width then return wrong_value(override_key) end
          charge.limit, charge.override = model.limit(limit_args, 1), line
        elseif algorithm == "calendar" and limit.period_us == 0 then
          limit.amount, charge.override = tonumber(numbers), line
          if not limit.amount then return wrong_value(override_key) end
        elseif not algorithm then
          override = nil
        end
      end
      local verdict, error_reply
      charge.before, error_reply = storage.load(charge.key, charge.limit, charge.at_us)
      if error_reply then return error_reply end
      verdict, charge.after = model.decide(charge.limit, charge.before, charge.at_us, charge.cost, left_patience_us)
      if verdict[1] ~= 1 then
        if verdict[1] == -2 then return { verdict } end
        part.pass = false
        if charge.cost > 0 then part.refused = true end
      end
      verdicts[i], charges[i] = verdict, charge
    end
    arg_index = arg_index + 2 + model.width
  end
  charge_count = part.last
  if not part.is_shadow then pass = pass and part.pass end
  parts[#parts + 1] = part
end

for _, part in ipairs(parts) do
  local commits, part_passes = commit == "1", pass
  if part.is_shadow then commits, part_passes = commit ~= "0", part.pass end
  if part.locked_us == 0 then
    for i = part.first, part.last do
      local charge = charges[i]
      if not (part_passes and commits) and verdicts[i][1] == 1 then
        verdicts[i], charge.after = charge.model.decide(charge.limit, charge.before, charge.at_us, 0, -1)
        verdicts[i][1], verdicts[i][3] = 1, 0
      end
      verdicts[i][8] = charge.override
      if commits and charge.after ~= charge.before then
        charge.storage.save(charge.key, charge.limit, charge.after, charge.at_us - part.paused_us)
        if part.pause then outlive(part.pause_key, charge.key) end
      end
      if part.paused_us > 0 then
        local verdict, paused_us = verdicts[i], part.paused_us
        local waits = part.waits and verdict[1] == 1
        verdict[1], verdict[4], verdict[8] = waits and -5 or -4, verdict[4] + paused_us, paused_us
        if waits then verdict[5] = verdict[5] + paused_us
        elseif verdict[3] >= 0 then verdict[3] = verdict[3] + paused_us end
      end
    end
  end
  if part.key then
    if commit ~= "0" then
      if part.refused then
        part.after = models.lockout.count_refusal(part.lockout, part.after, now_us)
        part.locked_us = models.lockout.left_us(part.after, now_us)
      end
      if part.after and part.after ~= part.before then
        storages.lockout.save(part.key, part.lockout, part.after, now_us)
      end
    end
    if part.locked_us > 0 then
      for i = part.first, part.last do verdicts[i] = { -3, 0, part.locked_us, part.locked_us, 0, now_us, 0 } end
    end
  end
end
return verdicts
