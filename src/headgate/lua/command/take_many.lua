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
local limit, answer, n = model.limit(ARGV, 1), {}, 0
for i, key in ipairs(KEYS) do
  local ours, before = pcall(keep.load, key, limit)
  local verdict = { type(before) == "table" and before or { err = before }, 0, 0, 0, 0, now_us, 0 }
  if ours then
    local after
    verdict, after = model.decide(limit, before, now_us, (ARGV[model.width + i] or 1) + 0, -1)
    if after ~= before then keep.save(key, limit, after, now_us) end
  end
  for j = 1, 7 do answer[n + j] = verdict[j] end
  n = n + 7
end
return answer
