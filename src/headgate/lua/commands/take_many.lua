-- Takes of several keys under one limit, one after the other: each by itself, and a key that comes twice sees its
-- own first charge.
--
-- KEYS     the counts
-- ARGV     the limit's own numbers, then a cost for each key, left out where all are 1
-- returns  for each key the seven numbers of a take, one key after the other, which is less work than a list of
--          lists; the first is an error where that key holds something that is not ours
--
-- `model` and `keep` are the algorithm's; the assembler puts them above this line.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local limit, answer, done = model.limit(ARGV, 1), {}, 0
local function takes()
  for i = done + 1, #KEYS do
    local before, wrong = keep.load(KEYS[i], limit, now_us)
    if wrong then error(wrong) end
    local verdict, after = model.decide(limit, before, now_us, (ARGV[model.width + i] or 1) + 0, -1)
    if after ~= before then keep.save(KEYS[i], limit, after, now_us) end
    local n = done * 7
    for j = 1, 7 do answer[n + j] = verdict[j] end
    done = i
  end
end
while done < #KEYS do
  local fine, why = pcall(takes)
  if not fine then
    -- This key's trouble is not the others': they go on behind it.
    local wrong = { wrong_value(KEYS[done + 1], type(why) == "table" and why or { err = why }), 0, 0, 0, 0, now_us, 0 }
    for j = 1, 7 do answer[done * 7 + j] = wrong[j] end
    done = done + 1
  end
end
return answer
