-- Several charges on several keys, of any algorithms: all committed, or none.
--
-- KEYS     one count for each charge
-- ARGV     patience_us (-1 takes), commit (1, or 0 to be told only), then for each charge: algorithm, cost, the
--          limit's own numbers
-- returns  for each charge what a take returns; where another charge refused, or nothing was to be committed, one
--          that would have passed says so and tells how things stand, because nothing was taken
--
-- `models` and `keeps` are tables by algorithm; the assembler puts them above this line.
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local patience_us, commit = tonumber(ARGV[1]), ARGV[2] == "1"
local at, pass = 3, true
local charges, verdicts = {}, {}

for i, key in ipairs(KEYS) do
  local name = ARGV[at]
  local model, keep = models[name], keeps[name]
  local charge = { model = model, keep = keep, cost = tonumber(ARGV[at + 1]), limit = model.limit(ARGV, at + 2) }
  charge.before = keep.load(key, charge.limit)
  verdicts[i], charge.after = model.decide(charge.limit, charge.before, now_us, charge.cost, patience_us)
  if verdicts[i][1] == -2 then return { verdicts[i] } end
  pass = pass and verdicts[i][1] == 1
  at = at + 2 + model.width
  charges[i] = charge
end

for i, charge in ipairs(charges) do
  if not (pass and commit) and verdicts[i][1] == 1 then
    verdicts[i], charge.after = charge.model.decide(charge.limit, charge.before, now_us, 0, -1)
    verdicts[i][1], verdicts[i][3] = 1, 0
  end
  if commit and charge.after ~= charge.before then charge.keep.save(KEYS[i], charge.limit, charge.after, now_us) end
end
return verdicts
