-- Runs the rulebook's meaning in Lua outside of nginx, so that it can be compared with Python.
--
--   luajit vectors.lua LIB
--
-- LIB is nginx/lib. Each line is a question in JSON, and each answers one line of JSON. Texts are bytes on both ways:
-- what is not ASCII is written as it is. What is known of the call is `request` or `attributes`, as in tests/vectors.
--
--   {"verb": "match", "book": a document's JSON as a text, "cost", ...}    [{"rule", "key", ...}], as in match.jsonl
--   {"verb": "key", "key": [dimensions], "algorithm", "name", ...}         {"key", "missing", "redis"}
--   {"verb": "character", "text"}                                          how many bytes of it are one, or null
--   {"verb": "sha256" | "crc32", "text"}                                   the checksum

package.path = arg[1] .. "/?.lua;" .. package.path

local call_attributes = dofile((string.gsub(arg[0], "match_driver", "call_attributes")))
local crc32 = require "resty.headgate.text.crc32"
local json = require "resty.headgate.rules.bundle_json"
local keys = require "resty.headgate.rules.keys"
local match = require "resty.headgate.rules.match"
local redis_keys = require "resty.headgate.engines.redis.keys"
local sha256 = require "resty.headgate.text.sha256"
local strings = require "resty.headgate.text.strings"

local function quoted(text)
  return '"' .. string.gsub(text, '[%c"\\]', function(c) return string.format("\\u%04x", string.byte(c)) end) .. '"'
end

local function list(values, write)
  local out = {}
  for i, value in ipairs(values) do out[i] = write(value) end
  return "[" .. table.concat(out, ",") .. "]"
end

local function texts(values) return values and list(values, quoted) or "null" end

local function text(value) return value and quoted(value) or "null" end

local function written(one)
  return string.format(
    '{"rule":%s,"key":%s,"cost":%.0f,"limits":%s,"shadow":%s,"candidate":%s,"denial_reason":%s}',
    quoted(one.rule.name), quoted(one.key), one.cost, texts(one.limits), tostring(one.shadow), texts(one.candidate),
    text(one.denied)
  )
end

local function attributes_of(question)
  local came = question.request
  if not came then return call_attributes.from_table(question.attributes) end
  return call_attributes.request(came.method, came.target, came.headers, came.address)
end

local answers = {}

local last_text, last_book
function answers.match(question)
  if question.book ~= last_text then
    last_text, last_book = question.book, (match.compile(json.decode(question.book)))
  end
  local one, several = last_book(attributes_of(question), question.cost)
  return list(one and { one } or several, written)
end

function answers.key(question)
  local key, missing = keys.compile(keys.dimensions(question.key))(attributes_of(question))
  local redis = redis_keys.redis_key(redis_keys.head("hg", question.algorithm, question.name), key, sha256)
  return string.format('{"key":%s,"missing":%s,"redis":%s}', quoted(key), texts(missing), quoted(redis))
end

function answers.character(question) return tostring(strings.character_size(question.text, 1) or "null") end

function answers.sha256(question) return quoted(sha256(question.text)) end

function answers.crc32(question) return string.format("%.0f", crc32(question.text)) end

for line in io.lines() do
  local question = json.decode(line)
  io.write(answers[question.verb](question), "\n")
  io.flush()
end
