-- Writes the counts of this nginx to Redis, once a second, in one request: what the totals (shared_totals.lua) grew by.
-- The twin of telemetry/counts_writer.py and telemetry/shared_layout.py; docs/reference/storage.md has the layout.
--
-- One worker at a time writes: the one that gets the turn. What it needs to know is in the dict, so that any worker
-- can go on, also after a reload or if that worker is killed:
--
--   t:id      the writer's id          t:turn     a worker writes, or has just written
--   t:state   JSON: seq; filed, the totals that were taken; seconds and minutes, taken and not sent yet; sending, the
--             write that was sent and not answered, with its keys and changes; failed_at; message, the last one that
--             was logged
--
-- A write has a number, and Redis does it once (lua/commands/write_counts.lua): if no reply came, the same write is
-- sent again. While Redis does not answer, the seconds of the last two minutes and the minutes of the last 25 hours are
-- kept, at most MAX_STATE_BYTES of them; of keys, as many as telemetry/key_queue.lua has room for. No request waits for
-- any of it.
--
-- Laws (tests/nginx/telemetry/test_counts_writer.py): SharedCounts in Python reads what clients saw; one write a
-- second, whatever the number of workers; an outage is logged once when it begins and once when it ends, and loses
-- nothing within these bounds.

local cjson = require "cjson"
local clock = require "resty.headgate.clock"
local ffi = require "ffi"
local key_estimates = require "resty.headgate.telemetry.key_estimates"
local keys = require "resty.headgate.engines.redis.keys"
local shared_totals = require "resty.headgate.telemetry.shared_totals"
local version = require "resty.headgate.version"

ffi.cdef [[
int headgate_gethostname(char *name, size_t size) __asm__("gethostname");
]]

local M = {}

local ID, STATE, TURN = "t:id", "t:state", "t:turn"
local SCRIPT, HASH_TAG = "write_counts", "counts"
local OFFSET_S = 0.2 -- after a second has ended: by then the workers have moved their counts
local TIMEOUT_S = 1.0 -- of one write
local TURN_TTL_S = 5 -- after which a turn of a worker that was killed is over
local BLOCK = 10 -- seconds or minutes in one hash
local SECONDS_TTL_S, MINUTES_TTL_S, HOT_TTL_S = "240", "93600", "90"
local CHANGES_SLICE_S, CHANGES_TTL_S = 600, "1200"
local SLICE_S, CALLS = key_estimates.SLICE_S, "k"
local BY_FALLBACK = "F" -- the letter of that count
local SECONDS_KEPT, MINUTES_KEPT = 120, 25 * 60
local MAX_RULES, REMEMBERED_S = "1000", "90000"
local MAX_STATE_BYTES = 512 * 1024
local WRITE_RIGHTS = "+hget +hset +hincrby +pfadd +zcard +zremrangebyrank +zremrangebyscore +expire"

local floor, format, find = math.floor, string.format, string.find

local CountsWriter = {}
CountsWriter.__index = CountsWriter

-- `engine`: of Redis. `totals`: of telemetry/shared_totals.lua. `key_queue`: of telemetry/key_queue.lua.
-- `limit_changes`: of telemetry/limit_changes.lua.
function M.new(engine, dict, prefix, totals, key_queue, limit_changes)
  return setmetatable({
    engine = engine, dict = dict, head = keys.counts_head(prefix), totals = totals, key_queue = key_queue,
    limit_changes = limit_changes, reported = {},
  }, CountsWriter)
end

local function digits(number) return format("%d", number) end

-- Returns 64 random bits. Lua's own random numbers are no better than their seed.
local function random_id()
  local file, why = io.open("/dev/urandom", "rb")
  if not file then error("/dev/urandom cannot be read: " .. why, 0) end
  local bytes = file:read(8)
  file:close()
  return (string.gsub(bytes, ".", function(byte) return format("%02x", string.byte(byte)) end))
end

-- Returns the id of this nginx as a writer, the same in all workers.
local function writer_id(dict)
  local id = dict:get(ID)
  if id then return id end
  dict:safe_add(ID, random_id())
  return dict:get(ID)
end

local name

-- Returns the name that operators see: host and process id of the master, as Python processes have it.
local function writer_name()
  if name then return name end
  local buffer = ffi.new("char[?]", 257)
  local host = ffi.C.headgate_gethostname(buffer, 256) == 0 and ffi.string(buffer) or "nginx"
  local ok, process = pcall(require, "ngx.process")
  local pid = ok and process.get_master_pid and process.get_master_pid() or ngx.worker.pid()
  name = "nginx@" .. host .. ":" .. digits(pid)
  return name
end

local function load_state(dict)
  local text = dict:get(STATE)
  return text and cjson.decode(text) or { seq = 0, filed = {}, seconds = {}, minutes = {} }
end

-- Drops what is too old to be read.
local function drop_old(units, newest, kept)
  for unit in pairs(units) do
    if tonumber(unit) <= newest - kept then units[unit] = nil end
  end
end

-- Drops the older half of the units.
local function drop_older_half(units)
  local numbers = {}
  for unit in pairs(units) do numbers[#numbers + 1] = tonumber(unit) end
  table.sort(numbers)
  for i = 1, floor(#numbers / 2) do units[digits(numbers[i])] = nil end
  return #numbers > 1
end

-- Saves the state; returns false if the dict has no room for it.
local function save_state(self, state)
  local text = cjson.encode(state)
  while #text > MAX_STATE_BYTES and (drop_older_half(state.seconds) or drop_older_half(state.minutes)) do
    text = cjson.encode(state)
  end
  local saved = self.dict:safe_set(STATE, text)
  if not saved and not self.reported.full then
    self.reported.full = true
    ngx.log(ngx.ERR, "headgate: the shared dict is full: counts of decisions are not written to Redis. ",
      "Make lua_shared_dict larger.")
  end
  return saved
end

local function add(units, unit, rule, letter, count)
  local text = digits(unit)
  local rules = units[text] or {}
  units[text] = rules
  local counts = rules[rule] or {}
  rules[rule] = counts
  counts[letter] = (counts[letter] or 0) + count
end

-- Takes what the totals grew by, as counts of this second.
local function take_growth(self, state, second)
  local totals = self.totals:read()
  for rule, by_letter in pairs(totals) do
    local filed = state.filed[rule] or {}
    for letter, total in pairs(by_letter) do
      local growth = total - (filed[letter] or 0)
      if growth < 0 then growth = total end -- the dict has lost the total meanwhile
      if growth > 0 then
        add(state.seconds, second, rule, letter, growth)
        add(state.minutes, floor(second / 60), rule, letter, growth)
      end
    end
  end
  state.filed = totals
  drop_old(state.seconds, second, SECONDS_KEPT)
  drop_old(state.minutes, floor(second / 60), MINUTES_KEPT)
end

-- Returns the part of a write that adds to the key with this suffix: { ttl, type, argument, ... }. `by_rule` has all of
-- them: { [rule] = { [suffix] = part } }.
local function part_of(by_rule, rule, suffix, ttl, kind)
  by_rule[rule] = by_rule[rule] or {}
  local part = by_rule[rule][suffix] or { ttl, kind }
  by_rule[rule][suffix] = part
  return part
end

-- Adds the hashes of each rule.
local function add_hashes(by_rule, kind, units, ttl)
  for unit, rules in pairs(units) do
    local number = tonumber(unit)
    for rule, counts in pairs(rules) do
      local hash = part_of(by_rule, rule, kind .. ":" .. digits(floor(number / BLOCK)) .. ":" .. rule, ttl, "h")
      for letter, count in pairs(counts) do
        hash[#hash + 1] = digits(number % BLOCK) .. letter
        hash[#hash + 1] = digits(count)
      end
    end
  end
end

-- Adds this nginx to those whose fallback decided, with the calls of each ten seconds.
local function add_degraded(by_rule, seconds)
  for second, rules in pairs(seconds) do
    for rule, counts in pairs(rules) do
      if counts[BY_FALLBACK] then
        local set = part_of(by_rule, rule, "g:" .. digits(floor(tonumber(second) / BLOCK)), HOT_TTL_S, "z")
        set[#set + 1] = writer_name()
        set[#set + 1] = digits(counts[BY_FALLBACK])
      end
    end
  end
end

-- Adds key after key, and the number behind it if it is a hot one.
local function add_arguments(part, listed)
  for _, each in ipairs(listed) do part[#part + 1] = type(each) == "number" and digits(each) or each end
end

-- Adds the hot and distinct keys that workers collected (telemetry/key_queue.lua).
local function add_keys(by_rule, entries)
  for _, entry in ipairs(entries) do
    local rule, kind, shape, number, listed = unpack(entry)
    local suffix = digits(number) .. ":" .. kind .. ":" .. rule
    if shape == "distinct" then
      add_arguments(part_of(by_rule, rule, "d:" .. suffix, MINUTES_TTL_S, "p"), listed)
    else
      add_arguments(part_of(by_rule, rule, "h:" .. suffix, HOT_TTL_S, "z"), listed)
      if kind ~= CALLS then
        local hour = digits(floor(number * SLICE_S / 3600))
        add_arguments(part_of(by_rule, rule, "r:" .. hour .. ":" .. kind .. ":" .. rule, MINUTES_TTL_S, "z"), listed)
      end
    end
  end
end

-- Adds the changes of adaptive limits: { at_us, rule, key, before, after, reason } each, the time as text.
local function add_changes(by_rule, changes)
  for _, change in ipairs(changes) do
    local at_us, rule, key, before, after, reason = unpack(change)
    local at_s = floor(tonumber(at_us) / 1000000)
    local text = "[" .. table.concat({
      at_us, cjson.encode(writer_name()), cjson.encode(rule), cjson.encode(key), digits(before), digits(after),
      cjson.encode(reason),
    }, ",") .. "]"
    local set = part_of(by_rule, rule, "l:" .. digits(floor(at_s / CHANGES_SLICE_S)), CHANGES_TTL_S, "z")
    set[#set + 1] = text
    set[#set + 1] = digits(at_s)
  end
end

-- Returns the keys and the arguments of the script for a write.
local function script_args(self, write)
  local by_rule = {}
  add_hashes(by_rule, "s", write.seconds, SECONDS_TTL_S)
  add_hashes(by_rule, "m", write.minutes, MINUTES_TTL_S)
  add_degraded(by_rule, write.seconds)
  add_keys(by_rule, write.keys or {})
  add_changes(by_rule, write.changes or {})
  local head = self.head
  local redis_keys = { head .. "w:" .. writer_id(self.dict), head .. "rules", head .. "writers" }
  local args = { digits(write.seq), digits(write.at), writer_name() .. " " .. version.VERSION, MAX_RULES, REMEMBERED_S }
  for rule, parts in pairs(by_rule) do
    local count_at = #args + 2
    args[count_at - 1], args[count_at] = rule, 0
    for suffix, part in pairs(parts) do
      redis_keys[#redis_keys + 1] = head .. suffix
      args[count_at] = args[count_at] + 1
      args[#args + 1] = digits(#redis_keys)
      args[#args + 1] = part[1]
      args[#args + 1] = part[2]
      args[#args + 1] = digits(#part - 2)
      for i = 3, #part do args[#args + 1] = part[i] end
    end
    args[count_at] = digits(args[count_at])
  end
  return redis_keys, args
end

local function lacks_right(text)
  local folded = string.lower(text)
  return find(folded, "noperm", 1, true) or find(folded, "acl failure", 1, true)
    or find(folded, "no permission", 1, true) or find(folded, "can't run", 1, true)
end

-- Logs a message once, until it changes or a write succeeds. `reported` is the state, which all workers share.
local function report_once(reported, message)
  if reported.message == message then return end
  reported.message = message
  ngx.log(ngx.ERR, "headgate: ", message)
end

-- Notes a failed write. It is sent again, unless it would fail again.
local function note_failure(self, state, failure)
  local server, text = self.engine.text, failure.text
  if lacks_right(text) then
    state.sending = nil
    return report_once(state, "counts are not shared: Redis at " .. server .. " refused a command for counts: its user"
      .. " lacks a right (" .. text .. "). Grant these: ACL SETUSER <user> " .. WRITE_RIGHTS)
  elseif failure.kind == "corrupt" or failure.kind == "wrong" then
    state.sending = nil -- parts of it may have been done
    return report_once(state, "counts are not shared: Redis at " .. server .. ": " .. text)
  elseif not state.failed_at then
    state.failed_at = clock.now()
    ngx.log(ngx.WARN, "headgate: counts cannot be written to Redis at ", server, " (", text,
      "). They are kept here, and written when it answers again.")
  end
end

local function note_success(self, state, left_out)
  state.sending = nil
  if left_out <= 0 then state.message = nil end
  if state.failed_at then
    ngx.log(ngx.WARN, "headgate: counts are written to Redis at ", self.engine.text, " again, after ",
      format("%.1f", clock.now() - state.failed_at), " s.")
    state.failed_at = nil
  end
  if left_out > 0 then
    report_once(state, "counts of some rules are not shared: there are more than " .. MAX_RULES .. " rules.")
  end
end

-- Writes what was counted since the last write. The turn is ours.
local function write(self, second)
  local state = load_state(self.dict)
  take_growth(self, state, second)
  if not state.sending then
    local taken = self.key_queue:take()
    local changes = self.limit_changes:take()
    if next(state.minutes) or taken[1] or changes[1] then
      state.seq = state.seq + 1
      state.sending = {
        seq = state.seq, at = floor(clock.now()), seconds = state.seconds, minutes = state.minutes, keys = taken,
        changes = changes,
      }
      state.seconds, state.minutes = {}, {}
    end
  end
  if not state.sending or not save_state(self, state) then return end
  local redis_keys, args = script_args(self, state.sending)
  local reply, failure = self.engine:run_script_alone(SCRIPT, redis_keys, args, HASH_TAG, TIMEOUT_S)
  if reply then note_success(self, state, tonumber(reply) or 0) else note_failure(self, state, failure) end
  save_state(self, state)
end

-- Writes, if it is our turn. Without a bundle there is no script yet.
function CountsWriter:write(second)
  if not self.engine.scripts[SCRIPT] or not self.dict:safe_add(TURN, 1, TURN_TTL_S) then return end
  local ok, why = pcall(write, self, second)
  if not ok then report_once(self.reported, "counts are not shared: " .. tostring(why)) end
  self.dict:safe_set(TURN, 1, 1 - clock.now() % 1) -- until the second has ended
end

-- Writes the last counts, when the last worker exits.
function CountsWriter:write_last()
  self.dict:delete(TURN)
  self:write(floor(clock.now()))
end

local function on_timer(premature, self)
  if premature then return end
  self:write(floor(clock.now()) - 1)
  ngx.timer.at(shared_totals.delay_until(OFFSET_S), on_timer, self)
end

-- Starts the timer of a worker.
function CountsWriter:start() ngx.timer.at(shared_totals.delay_until(OFFSET_S), on_timer, self) end

return M
