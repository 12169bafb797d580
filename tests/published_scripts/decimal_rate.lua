-- Reads "burst rate" lines and answers "amount period_us", or what is wrong with them.
--   lua5.1 decimal_rate.lua MODEL_FILE < lines
local model = dofile(arg[1])
for line in io.lines() do
  local burst, rate = string.match(line, "^(%S+) (.*)$")
  local limit, trouble = model.bucket(burst, rate)
  print(limit and string.format("%.17g %.17g", limit.amount, limit.period_us) or trouble)
end
