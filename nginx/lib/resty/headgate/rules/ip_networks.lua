-- Addresses of callers: read once, written in one way, and grouped by networks. The twin of rules/ip_networks.py.
--
--   ::ffff:192.0.2.7     is 192.0.2.7: the same caller, seen through a socket of both kinds
--   fe80::1%eth0         is fe80::1: a zone is the host's own affair
--   unix:, 10.0.0.1:80   are no addresses, and nil
--
-- An address is a row of 16-bit words: two of IPv4, eight of IPv6.
--
-- Law: two texts of the same address read the same, and what cannot be read is never an error: it is absent.

local split = require "resty.headgate.text.strings"
local utf8 = require "resty.headgate.text.utf8"

local M = {}

local LONGEST = 64 -- characters of an address with its zone

local function read_v4(text)
  local octets = { string.match(text, "^(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)$") }
  if #octets ~= 4 then return nil end
  for i, digits in ipairs(octets) do
    octets[i] = tonumber(digits)
    if octets[i] > 255 or #digits > 1 and string.sub(digits, 1, 1) == "0" then return nil end
  end
  return { octets[1] * 256 + octets[2], octets[3] * 256 + octets[4] }
end

-- The words of one side of "::", or of an address without it; the last may be an IPv4 address.
local function read_side(text, last)
  local words = {}
  if text == "" then return words end
  local parts = split.split(text, ":")
  for i, part in ipairs(parts) do
    if string.find(part, "^%x%x?%x?%x?$") then
      words[#words + 1] = tonumber(part, 16)
    else
      local v4 = last and i == #parts and read_v4(part)
      if not v4 then return nil end
      words[#words + 1], words[#words + 2] = v4[1], v4[2]
    end
  end
  return words
end

local function read_v6(text)
  local front, back = split.cut(text, "::")
  local words, tail = read_side(front, back == nil), read_side(back or "", true)
  if not words or not tail then return nil end
  if not back then return #words == 8 and words or nil end
  local gap = 8 - #words - #tail
  if gap < 1 then return nil end
  for _ = 1, gap do words[#words + 1] = 0 end
  for _, word in ipairs(tail) do words[#words + 1] = word end
  return words
end

local function mapped(words)
  for i = 1, 5 do
    if words[i] ~= 0 then return false end
  end
  return words[6] == 0xFFFF
end

-- The words of an address; IPv4 if it is one in the clothes of IPv6.
local function read(text)
  local v4 = read_v4(text)
  if v4 then return v4 end
  local address, zone = split.cut(text, "%")
  if zone and (zone == "" or string.find(zone, "[%%/]")) then return nil end
  local words = read_v6(address)
  if words and mapped(words) then return { words[7], words[8] } end
  return words
end

-- The first of the longest rows of zeros, and its length; a single zero is written out.
local function longest_gap(words)
  local from, length, run = nil, 1, 0
  for i, word in ipairs(words) do
    run = word == 0 and run + 1 or 0
    if run > length then from, length = i - run + 1, run end
  end
  return from, length
end

local function hex(words, from, to)
  local out = {}
  for i = from, to do out[#out + 1] = string.format("%x", words[i]) end
  return table.concat(out, ":")
end

local function written(words)
  if #words == 2 then
    local high, low = words[1], words[2]
    return string.format("%d.%d.%d.%d", math.floor(high / 256), high % 256, math.floor(low / 256), low % 256)
  end
  local from, length = longest_gap(words)
  if not from then return hex(words, 1, 8) end
  return hex(words, 1, from - 1) .. "::" .. hex(words, from + length, 8)
end

-- Only its first bits; the others are 0.
local function masked(words, length)
  local out = {}
  for i, word in ipairs(words) do
    local dropped = 2 ^ math.min(16, math.max(0, 16 * i - length))
    out[i] = word - word % dropped
  end
  return out
end

-- The address as everybody writes it; nil if it is none.
function M.canonical(text)
  if #text > 4 * LONGEST or #text > LONGEST and utf8.count(text) > LONGEST then return nil end
  local words = read(text)
  return words and written(words)
end

-- The network of that many bits around the address; the address itself if it is counted whole.
function M.grouped(text, v4, v6)
  local words = read(text)
  if not words then return nil end
  local length = #words == 2 and v4 or v6
  if length == 16 * #words then return written(words) end
  return string.format("%s/%d", written(masked(words, length)), length)
end

local function network(text)
  local address, length = split.cut(text, "/")
  local words = read(address)
  if not words then error('"' .. text .. '" is no network: write 10.0.0.0/8, 192.0.2.7 or fd00::/8.', 0) end
  length = tonumber(length)
  if length and #words == 2 and string.find(address, ":", 1, true) then length = length - 96 end
  return { words = words, length = length or 16 * #words }
end

local function inside(words, net)
  if #words ~= #net.words then return false end
  local front = masked(words, net.length)
  for i, word in ipairs(net.words) do
    if front[i] ~= word then return false end
  end
  return true
end

-- Some networks, as a function that says whether an address is in one of them.
function M.networks(texts)
  local nets = {}
  for i, text in ipairs(texts) do nets[i] = network(text) end
  return function(text)
    local words = read(text)
    for _, net in ipairs(words and nets or {}) do
      if inside(words, net) then return true end
    end
    return false
  end
end

return M
