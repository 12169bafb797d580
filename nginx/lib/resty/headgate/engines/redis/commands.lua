-- Encodes requests as bytes. Pure. The twin of engines/redis/protocol.py and engines/charge_options.py.
--
-- Nearly all of a request is known when a bundle is compiled; only the key and, rarely, the cost change. So the
-- constant parts are encoded once and stored on the bound limit (bound_limit.redis), and a take of one unit is five
-- texts joined.
--
--   is_single_take   a charge by itself is no more than a take
--   options          the options of its group; nil of plain charges, which are all or none anyway
--
-- Charges without options that are of one algorithm may be joined with those of other calls: one script run decides
-- them all, one call after the other. Such a request is encoded when it is known how it is sent.
--
-- Laws (tests/nginx/engines/redis/test_commands.py, test_batched_calls.py): the bytes are those that Python would send
-- for the same charges, but for a patience that is omitted where there is none; and a joined call gets the reply that
-- it would have got by itself at that instant, after those before it.

local keys = require "resty.headgate.engines.redis.keys"
local resp = require "resty.headgate.engines.redis.resp"
local sha256 = require "resty.headgate.text.sha256"

local concat, find, sub = table.concat, string.find, string.sub
local bulk, bulks, number = resp.bulk, resp.bulks, resp.number

local M = {}

local MAX_KEY_BYTES = 200 -- longer keys are hashed
local MAX_EXACT = 2 ^ 53 -- larger costs can never pass either
local NO_PATIENCE = bulk("-1") -- a gateway does not wait for units
local MAX_COUNTS = 256 -- in one request: a script has room for some thousand values at once

M.PEEK, M.COMMIT, M.PRECHECK = 0, 1, 2

-- Returns the key as it is between the braces.
local function escaped(key)
  if #key <= MAX_KEY_BYTES and not find(key, "[%c %%{}]") then return key end
  return sub(keys.redis_key("", key, sha256), 1, -2)
end

M.escaped = escaped

local function evalsha_head(arg_count, sha, key_count)
  return "*" .. arg_count .. "\r\n$7\r\nEVALSHA\r\n$40\r\n" .. sha .. "\r\n" .. bulk(key_count .. "")
end

-- Encodes the options of a group, and the heads of the keys beside its counts.
local function encode_options(encoding, options, prefix)
  local letters, args = options.shadow and "a" or "", { "" }
  if options.lockout then
    letters = letters .. "l"
    for i, value in ipairs(options.lockout) do args[i + 1] = number(value) end
    encoding.models[2] = "lockout"
    encoding.extra_heads[1] = keys.head(prefix, "lockout", options.rule)
  end
  if options.overrides then
    letters = letters .. "o"
    encoding.extra_heads[#encoding.extra_heads + 1] = keys.head(prefix, "override", options.rule)
  end
  if options.pausable then
    letters = letters .. "p"
    encoding.models[#encoding.models + 1] = "pause"
    encoding.extra_heads[#encoding.extra_heads + 1] = encoding.pause_head
  end
  args[1] = letters
  encoding.option_args, encoding.option_arg_count = bulks(args), #args
end

-- Encodes the constant parts of a bound limit's requests, and stores them there. `scripts` are the bundle's, by name.
function M.bind(bound_limit, scripts, prefix)
  local limit, options = bound_limit.limit, bound_limit.options
  local pausable = options.pausable or false
  local has_rule_state = options.lockout ~= nil or options.overrides or pausable
  local encoding = {
    algorithm = bulk(limit.algorithm), args = bulks(limit.numbers), number_count = #limit.numbers,
    head = bound_limit.head, name_bytes = #bound_limit.head + 1, calendar = limit.calendar ~= nil,
    is_single_take = not has_rule_state,
    options = (has_rule_state or options.shadow) and options or nil, models = { limit.algorithm }, extra_heads = {},
    option_args = bulk(""), option_arg_count = 1,
    take_sha = scripts["take " .. limit.algorithm],
    refund_sha = scripts[(pausable and "refund_paused " or "refund ") .. limit.algorithm],
    pause_head = pausable and keys.head(prefix, "pause", options.rule) or nil,
    together_sha = scripts["take_together " .. limit.algorithm],
    calls_sha = not limit.calendar and scripts["take_calls " .. limit.algorithm] or nil,
  }
  encoding.single_unit_args = encoding.args .. bulk("1")
  if encoding.options then encode_options(encoding, encoding.options, prefix) end
  encoding.model_names = table.concat(encoding.models, " ") .. " "
  if encoding.take_sha then
    encoding.take_head = evalsha_head(4 + encoding.number_count, encoding.take_sha, 1) .. "$"
    encoding.take_head_with_cost = evalsha_head(5 + encoding.number_count, encoding.take_sha, 1) .. "$"
    encoding.key_head, encoding.key_tail = "\r\n" .. bound_limit.head, "}\r\n" .. encoding.args
  end
  bound_limit.redis = encoding
  return encoding
end

-- Encodes a single take. `numbers` are a calendar's of now; nil: the limit's own.
function M.take(encoding, key_text, cost, numbers)
  if cost == 1 and not numbers then
    return encoding.take_head .. encoding.name_bytes + #key_text .. encoding.key_head .. key_text .. encoding.key_tail
  end
  local args = numbers and bulks(numbers) or encoding.args
  local head = cost == 1 and encoding.take_head or encoding.take_head_with_cost
  local more = cost ~= 1 and bulk(number(cost < MAX_EXACT and cost or MAX_EXACT)) or ""
  return head .. encoding.name_bytes + #key_text .. encoding.key_head .. key_text .. "}\r\n" .. args .. more
end

-- Returns the end of the group that begins here: one rule's charges, or consecutive ones without options.
local function group_end(charges, first)
  local options, key = charges[first].bound_limit.redis.options, charges[first].key
  local last, following = first, charges[first + 1]
  while following and following.bound_limit.redis.options == options and (options == nil or following.key == key) do
    last = last + 1
    following = charges[last + 1]
  end
  return last
end

local function add_key(redis_keys, head, key_text)
  redis_keys[#redis_keys + 1] = "$" .. #head + #key_text + 1 .. "\r\n" .. head .. key_text .. "}\r\n"
end

-- Encodes the key of a charge's count.
local function count_key(encoding, key_text)
  return "$" .. encoding.name_bytes + #key_text .. "\r\n" .. encoding.head .. key_text .. "}\r\n"
end

local buffer = {}

-- Encodes several charges without options of one algorithm (script take_together). They are committed, whatever
-- `commit` says.
function M.take_together(charges, sha, _, engine, at_us)
  local count, key, key_text = #charges, nil, nil
  for i = 1, count do
    local charge = charges[i]
    local encoding, cost = charge.bound_limit.redis, charge.cost
    if charge.key ~= key then key, key_text = charge.key, escaped(charge.key) end
    buffer[i] = count_key(encoding, key_text)
    if cost == 1 and not encoding.calendar then
      buffer[count + i] = encoding.single_unit_args
    else
      local args = encoding.calendar and bulks(engine:numbers(charge.bound_limit.limit, at_us)) or encoding.args
      buffer[count + i] = args .. bulk(number(cost < MAX_EXACT and cost or MAX_EXACT))
    end
  end
  local arg_count = 3 + count * (2 + charges[1].bound_limit.redis.number_count)
  return evalsha_head(arg_count, sha, count) .. concat(buffer, "", 1, 2 * count)
end

-- Returns a request that may be joined with others that use the script `calls_sha`; nil if it may not. `sha` is the
-- script that it uses alone; `scripts` are texts by their SHA1.
function M.joinable(charges, sha, scripts)
  local calls_sha = charges[1].bound_limit.redis.calls_sha
  for i = 2, #charges do
    if charges[i].bound_limit.redis.calls_sha ~= calls_sha then return nil end
  end
  return calls_sha and { charges = charges, sha = sha, calls_sha = calls_sha, text = scripts[calls_sha] }
end

-- Encodes a request that is sent alone.
function M.encode(request)
  local packed = request.packed
  if packed then return packed end
  local charges = request.charges
  local charge = charges[1]
  if charges[2] then
    packed = M.take_together(charges, request.sha)
  else
    packed = M.take(charge.bound_limit.redis, escaped(charge.key), charge.cost)
  end
  request.packed = packed
  return packed
end

local small_bulks = {} -- bulks of small numbers

local function small_bulk(n)
  local bulk_text = small_bulks[n]
  if not bulk_text then
    bulk_text = bulk(n .. "")
    small_bulks[n] = bulk_text
  end
  return bulk_text
end

-- Adds a call to a joined request; false if it does not fit.
local function add(request, charges)
  local index_of, args, arg_count, key, key_text = request.index_of, request.args, request.arg_count + 1, nil, nil
  if request.count_total + #charges > MAX_COUNTS then return false end
  args[arg_count] = small_bulk(#charges)
  for i = 1, #charges do
    local charge = charges[i]
    local encoding, cost = charge.bound_limit.redis, charge.cost
    if charge.key ~= key then key, key_text = charge.key, escaped(charge.key) end
    local text = count_key(encoding, key_text)
    local n = index_of[text]
    if not n then
      n = request.count_total + 1
      request.count_total, index_of[text], request.count_keys[n], request.limits[n] = n, n, text, encoding.args
    elseif request.limits[n] ~= encoding.args then
      return false -- the same count under another limit: the rule has just changed
    end
    arg_count = arg_count + 1
    args[arg_count] = small_bulk(cost == 1 and n or -n)
    if cost ~= 1 then
      arg_count = arg_count + 1
      args[arg_count] = bulk(number(cost < MAX_EXACT and cost or MAX_EXACT))
    end
  end
  request.arg_count = arg_count
  return true
end

-- Joins the requests that can be joined with the first of them (script take_calls). Returns its bytes, and which of its
-- calls each request is (false: none); nil if there are none.
function M.join_calls(requests)
  local calls_sha = requests[1].calls_sha
  if not calls_sha then return nil end
  local request = { index_of = {}, count_keys = {}, limits = {}, args = {}, count_total = 0, arg_count = 0 }
  local call_index, count = {}, 0
  for i = 1, #requests do
    call_index[i] = false
    if requests[i].calls_sha == calls_sha and add(request, requests[i].charges) then
      count = count + 1
      call_index[i] = count
    end
  end
  if count < 2 then return nil end
  local count_total, arg_count = request.count_total, request.arg_count
  local number_count = requests[1].charges[1].bound_limit.redis.number_count
  local head = evalsha_head(4 + count_total * (1 + number_count) + arg_count, calls_sha, count_total)
  local limits, args = concat(request.limits), concat(request.args, "", 1, arg_count)
  return head .. concat(request.count_keys) .. small_bulk(count) .. limits .. args, call_index
end

-- Encodes several charges in one request (script take_all). The engine returns the numbers of a calendar's limit at
-- that instant.
function M.take_all(charges, sha, commit, engine, at_us)
  local redis_keys, args, count = {}, { NO_PATIENCE, bulk(commit .. "") }, 2
  local first = 1
  while charges[first] do
    local last, first_charge = group_end(charges, first), charges[first]
    local group_encoding, key_text = first_charge.bound_limit.redis, escaped(first_charge.key)
    for _, head in ipairs(group_encoding.extra_heads) do add_key(redis_keys, head, key_text) end
    args[#args + 1] = bulk(last - first + 1 .. "") .. group_encoding.option_args
    count = count + 1 + group_encoding.option_arg_count
    for i = first, last do
      local charge = charges[i]
      local encoding, cost = charge.bound_limit.redis, charge.cost
      add_key(redis_keys, encoding.head, i == first and key_text or escaped(charge.key))
      local limit_args = encoding.calendar and bulks(engine:numbers(charge.bound_limit.limit, at_us)) or encoding.args
      args[#args + 1] = encoding.algorithm .. bulk(number(cost < MAX_EXACT and cost or MAX_EXACT)) .. limit_args
      count = count + 2 + encoding.number_count
    end
    first = last + 1
  end
  return evalsha_head(3 + #redis_keys + count, sha, #redis_keys) .. table.concat(redis_keys) .. table.concat(args)
end

-- Encodes a run of one script on one key.
function M.run_script(sha, key, args) return evalsha_head(4 + #args, sha, 1) .. bulk(key) .. bulks(args) end

-- Encodes a run of one script on several keys.
function M.run_script_on(sha, redis_keys, args)
  return evalsha_head(3 + #redis_keys + #args, sha, #redis_keys) .. bulks(redis_keys) .. bulks(args)
end

-- Encodes the refund of a charge: of its cost, by its outcome.
function M.refund(charge, key_text, outcome, numbers)
  local encoding, cost = charge.bound_limit.redis, charge.cost
  local args = { cost, 0, cost, outcome[6], outcome[4], outcome[5], outcome[7], 0 }
  for _, value in ipairs(numbers or charge.bound_limit.limit.numbers) do args[#args + 1] = value end
  local redis_keys = { encoding.head .. key_text .. "}" }
  if encoding.pause_head then redis_keys[2] = encoding.pause_head .. key_text .. "}" end
  return M.run_script_on(encoding.refund_sha, redis_keys, args)
end

return M
