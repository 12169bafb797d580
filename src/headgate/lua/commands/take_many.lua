-- Takes from several keys under one limit, one after the other: each by itself, and a key that occurs twice sees its
-- own first charge.
--
-- KEYS     the counts
-- ARGV     the numbers of the limit, then a cost for each key, left out where all are 1
-- returns  for each key the seven numbers of a take, one key after the other, which is less work than a list of
--          lists; the first is an error where that key holds something that is not ours
--
-- `model` and `storage` are the algorithm's; the assembler inserts them above.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local limit, reply, done = model.limit(ARGV, 1), {}, 0
local function take_rest()
  for i = done + 1, #KEYS do
    local before, error_reply = storage.load(KEYS[i], limit, now_us)
    if error_reply then error(error_reply) end
    local verdict, after = model.decide(limit, before, now_us, (ARGV[model.width + i] or 1) + 0, -1)
    if after ~= before then storage.save(KEYS[i], limit, after, now_us) end
    local n = done * 7
    for j = 1, 7 do reply[n + j] = verdict[j] end
    done = i
  end
end
while done < #KEYS do
  local ok, failure = pcall(take_rest)
  if not ok then
    -- An error of one key does not stop the others: continue after it.
    local error_reply = wrong_value(KEYS[done + 1], type(failure) == "table" and failure or { err = failure })
    local error_row = { error_reply, 0, 0, 0, 0, now_us, 0 }
    for j = 1, 7 do reply[done * 7 + j] = error_row[j] end
    done = done + 1
  end
end
return reply
