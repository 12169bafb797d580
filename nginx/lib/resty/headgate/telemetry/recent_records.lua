-- Keeps a sample of the records of this worker's decisions, and writes it to Redis once a second. The twin of
-- telemetry/recent_records.py; docs/reference/storage.md has the layout.
--
-- A worker takes at most MAX_RECORDS_PER_S refusals and as many requests that passed, the first of each second; a
-- request beyond that pays for a comparison. Redis keeps at most so many of one second, refusals first, of all
-- processes together. A timer compresses the records and writes them; no request waits for it. While Redis does not
-- answer, records are dropped: a sample needs no more. One line is logged then, and one when it answers again.
--
--   t:recent:gone   since when Redis does not take records      t:recent:back   a worker has just logged that it does
--
-- Law (tests/nginx/telemetry/test_recent_records.py): RecentRecordsReader in Python reads the records of all workers.

local clock = require "resty.headgate.clock"
local decision_record = require "resty.headgate.request.decision_record"
local deflate = require "resty.headgate.ffi.deflate"
local keys = require "resty.headgate.engines.redis.keys"
local request_attributes = require "resty.headgate.request.request_attributes"

local M = {}

local SCRIPT, HASH_TAG = "recent_records", "recent"
local GONE, BACK = "t:recent:gone", "t:recent:back"
local INTERVAL_S, TIMEOUT_S = 1, 1
local MAX_RECORDS_PER_S, MAX_BYTES_PER_S, KEPT_S = 200, "34955", "900"

-- The first byte of a record names its format: compressed with this dictionary, as in Python.
local FORMAT = "\1"
local DICTIONARY = table.concat {
  '"delay_us":0,"override":null}],"shadow":[{"candidate":[{"degraded":true,"together":[0,"in_code":true,',
  '"patience_us":"hashed":["address","user"],"duration_us":"version":null,"status":null,"status":200,',
  '"header.authorization":"header.x-api-key":"plan":"method":"GET","method":"POST","path":"/api/v1/","host":"',
  '"allowed":false,"remaining":0,"retry_after_us":{"at_us":179,"seq":1,"process":"","attributes":{"address":"',
  '","user":"},"cost":1,"cost":null,"allowed":true,"rule":"","version":"sample":1,"latency_us":"status":429,',
  '"verdicts":[{"rule":"","key":"user=","key":"address=","limit":"/minute","/s burst ","cost":1,"allowed":true,',
  '"remaining":1,"retry_after_us":0,"delay_us":0}],"shadow":[],"candidate":[]}',
}

local floor, format = math.floor, string.format

-- Records that this worker took since the last write. Until the timer has started, nothing is taken.
local refusals, passes, newest_us = {}, {}, 0
local refusals_left, passes_left = 0, 0
local seq = 0 -- of the last record

-- Returns whether the record of a request is to be added.
function M.wants(is_refusal) return (is_refusal and refusals_left or passes_left) > 0 end

local function next_seq()
  seq = seq + 1
  return seq
end

local function add(text, at_us, is_refusal)
  text = text .. ',"status":null}'
  if at_us > newest_us then newest_us = at_us end
  if is_refusal then
    refusals[#refusals + 1], refusals_left = text, refusals_left - 1
  else
    passes[#passes + 1], passes_left = text, passes_left - 1
  end
end

-- Returns the attributes of the current request. They are read again: the table that held them before the decision may
-- serve another request now.
local function attributes_text(bundle)
  return decision_record.attributes_text(bundle, request_attributes.request())
end

-- Adds the record of a request that met one live rule with one limit.
function M.add_single(bundle, charge, outcome)
  local text, at_us = decision_record.single_text(bundle, charge, outcome, next_seq(), attributes_text(bundle), nil)
  add(text, at_us, outcome[1] ~= 1)
end

-- Adds the record of any request, if it is wanted. `rule`: the one that decided; nil if none applied.
function M.add_several(bundle, allowed, charges, outcomes, denied, rule)
  local is_refusal = decision_record.has_refusal(charges, outcomes, denied)
  if not M.wants(is_refusal) then return end
  local text, at_us = decision_record.several_text(bundle, allowed, charges, outcomes, denied, rule,
    next_seq(), attributes_text(bundle), nil)
  add(text, at_us, is_refusal)
end

local RecentRecords = {}
RecentRecords.__index = RecentRecords

-- `engine`: of Redis.
function M.new(engine, dict, prefix)
  return setmetatable({ engine = engine, dict = dict, head = keys.recent_head(prefix) }, RecentRecords)
end

local function take_all()
  local taken_refusals, taken_passes, second = refusals, passes, floor(newest_us / 1000000)
  refusals, passes, newest_us = {}, {}, 0
  refusals_left, passes_left = MAX_RECORDS_PER_S, MAX_RECORDS_PER_S
  return taken_refusals, taken_passes, second
end

local function add_compressed(args, records)
  for _, text in ipairs(records) do args[#args + 1] = FORMAT .. deflate.compress(text, DICTIONARY) end
end

local function log_outage(self, text)
  if self.dict:safe_add(GONE, clock.now()) then
    ngx.log(ngx.WARN, "headgate: recent records cannot be written to Redis at ", self.engine.text, " (", text,
      "). They are dropped until it answers; requests are decided as before.")
  end
end

local function log_recovery(self)
  local gone_at = self.dict:get(GONE)
  if not gone_at or not self.dict:safe_add(BACK, 1, INTERVAL_S) then return end
  self.dict:delete(GONE)
  ngx.log(ngx.WARN, "headgate: recent records are written to Redis at ", self.engine.text, " again, after ",
    format("%.1f", clock.now() - gone_at), " s.")
end

-- Writes what was taken. Without a bundle there is no script yet.
function RecentRecords:write()
  local taken_refusals, taken_passes, second = take_all()
  if not (taken_refusals[1] or taken_passes[1]) or not self.engine.scripts[SCRIPT] then return end
  local head = self.head .. format("%d", second) .. ":"
  local args = { "write", format("%d", MAX_RECORDS_PER_S), MAX_BYTES_PER_S, KEPT_S, format("%d", #taken_refusals) }
  add_compressed(args, taken_refusals)
  add_compressed(args, taken_passes)
  local reply, failure =
    self.engine:run_script_alone(SCRIPT, { head .. "r", head .. "p", head .. "b" }, args, HASH_TAG, TIMEOUT_S)
  if reply then log_recovery(self) else log_outage(self, failure.text) end
end

local function on_timer(premature, self)
  local ok, why = pcall(self.write, self)
  if not ok then log_outage(self, tostring(why)) end
  if not premature then ngx.timer.at(INTERVAL_S, on_timer, self) end
end

-- Starts the timer of a worker.
function RecentRecords:start()
  if not deflate.is_available() then
    ngx.log(ngx.WARN, "headgate: recent records are not written: this nginx has no zlib.")
    return
  end
  take_all()
  ngx.timer.at(INTERVAL_S, on_timer, self)
end

return M
