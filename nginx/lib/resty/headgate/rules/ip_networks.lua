-- Parses, normalizes and groups the IP addresses of callers. The twin of rules/ip_networks.py.
--
--   ::ffff:192.0.2.7     is 192.0.2.7: the same caller, on a dual-stack socket
--   fe80::1%eth0         is fe80::1: a zone is local to the host
--   unix:, 10.0.0.1:80   are no addresses, and nil
--
-- An address is a list of 16-bit words: two of IPv4, eight of IPv6.
--
-- Law: two texts of the same address are parsed alike, and a text that cannot be parsed is never an error: it is
-- absent.

local strings = require "resty.headgate.text.strings"

local M = {}

local MAX_CHARACTERS = 64 -- of an address with its zone

local function parse_v4(text)
  local octets = { string.match(text, "^(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)$") }
  if #octets ~= 4 then return nil end
  for i, digits in ipairs(octets) do
    octets[i] = tonumber(digits)
    if octets[i] > 255 or #digits > 1 and string.sub(digits, 1, 1) == "0" then return nil end
  end
  return { octets[1] * 256 + octets[2], octets[3] * 256 + octets[4] }
end

-- Parses one side of "::", or an address without it; the last word may be an IPv4 address.
local function parse_side(text, last)
  local words = {}
  if text == "" then return words end
  local groups = strings.split(text, ":")
  for i, group in ipairs(groups) do
    if string.find(group, "^%x%x?%x?%x?$") then
      words[#words + 1] = tonumber(group, 16)
    else
      local v4_words = last and i == #groups and parse_v4(group)
      if not v4_words then return nil end
      words[#words + 1], words[#words + 2] = v4_words[1], v4_words[2]
    end
  end
  return words
end

local function parse_v6(text)
  local front, back = strings.cut(text, "::")
  local words, tail = parse_side(front, back == nil), parse_side(back or "", true)
  if not words or not tail then return nil end
  if not back then return #words == 8 and words or nil end
  local gap = 8 - #words - #tail
  if gap < 1 then return nil end
  for _ = 1, gap do words[#words + 1] = 0 end
  for _, word in ipairs(tail) do words[#words + 1] = word end
  return words
end

local function is_v4_mapped(words)
  for i = 1, 5 do
    if words[i] ~= 0 then return false end
  end
  return words[6] == 0xFFFF
end

-- Parses an address; an IPv4-mapped IPv6 address is IPv4.
local function parse(text)
  local v4_words = parse_v4(text)
  if v4_words then return v4_words end
  local address, zone = strings.cut(text, "%")
  if zone and (zone == "" or string.find(zone, "[%%/]")) then return nil end
  local words = parse_v6(address)
  if words and is_v4_mapped(words) then return { words[7], words[8] } end
  return words
end

-- Returns the first of the longest runs of zeros, and its length; a single zero is written out.
local function longest_gap(words)
  local from, length, run = nil, 1, 0
  for i, word in ipairs(words) do
    run = word == 0 and run + 1 or 0
    if run > length then from, length = i - run + 1, run end
  end
  return from, length
end

local function hex(words, from, to)
  local result = {}
  for i = from, to do result[#result + 1] = string.format("%x", words[i]) end
  return table.concat(result, ":")
end

local function format_address(words)
  if #words == 2 then
    local high, low = words[1], words[2]
    return string.format("%d.%d.%d.%d", math.floor(high / 256), high % 256, math.floor(low / 256), low % 256)
  end
  local from, length = longest_gap(words)
  if not from then return hex(words, 1, 8) end
  return hex(words, 1, from - 1) .. "::" .. hex(words, from + length, 8)
end

-- Keeps the first bits; the others are 0.
local function mask(words, length)
  local result = {}
  for i, word in ipairs(words) do
    local dropped = 2 ^ math.min(16, math.max(0, 16 * i - length))
    result[i] = word - word % dropped
  end
  return result
end

-- Returns the address in canonical form; nil if it is none.
function M.canonical(text)
  if #text > 4 * MAX_CHARACTERS then return nil end
  if #text > MAX_CHARACTERS and strings.count_characters(text) > MAX_CHARACTERS then return nil end
  local words = parse(text)
  return words and format_address(words)
end

-- Returns the network of that many bits around the address; the address itself if all bits count.
function M.grouped(text, v4_bits, v6_bits)
  local words = parse(text)
  if not words then return nil end
  local length = #words == 2 and v4_bits or v6_bits
  if length == 16 * #words then return format_address(words) end
  return string.format("%s/%d", format_address(mask(words, length)), length)
end

local function parse_network(text)
  local address, length = strings.cut(text, "/")
  local words = parse(address)
  if not words then error('"' .. text .. '" is no network: write 10.0.0.0/8, 192.0.2.7 or fd00::/8.', 0) end
  length = tonumber(length)
  if length and #words == 2 and string.find(address, ":", 1, true) then length = length - 96 end
  return { words = words, length = length or 16 * #words }
end

local function contains(words, network)
  if #words ~= #network.words then return false end
  local network_words = mask(words, network.length)
  for i, word in ipairs(network.words) do
    if network_words[i] ~= word then return false end
  end
  return true
end

-- Compiles networks into a predicate: whether an address is in one of them.
function M.compile(texts)
  local networks = {}
  for i, text in ipairs(texts) do networks[i] = parse_network(text) end
  return function(text)
    local words = parse(text)
    for _, network in ipairs(words and networks or {}) do
      if contains(words, network) then return true end
    end
    return false
  end
end

return M
