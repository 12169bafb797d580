-- Finds the node of a cluster that owns a slot. The twin of topology.Cluster.
--
-- All counts of one key are in one slot: the text between the braces, the hash tag, is the escaped key. The map is
-- requested once, by CLUSTER SLOTS, and again when it turned out to be stale: a request was redirected, or a node did
-- not reply. While it is stale it is requested every tenth of a second at most, and the known map is used meanwhile.
--
-- Laws (tests/nginx/engines/redis/test_cluster.py): the slot is the server's; MOVED changes the map for that slot at
-- once, ASK changes nothing; a node that did not reply is asked for the map last.

local bit = require "bit"

local first_reply = require "resty.headgate.engines.redis.first_reply"
local resp = require "resty.headgate.engines.redis.resp"
local server_address = require "resty.headgate.engines.redis.server_address"

local band, bxor, lshift, rshift = bit.band, bit.bxor, bit.lshift, bit.rshift
local byte = string.byte

local M = {}

local SLOTS = 16384
local REFRESH_INTERVAL_S = 0.1 -- of a stale map
local SLOTS_COMMAND = resp.command { "CLUSTER", "SLOTS" }
local NO_SLOTS_TEXT = "it knows of no slots"

local CRC_TABLE = {}
for first = 0, 255 do
  local crc = lshift(first, 8)
  for _ = 1, 8 do
    crc = band(crc, 0x8000) ~= 0 and bxor(lshift(crc, 1), 0x1021) or lshift(crc, 1)
  end
  CRC_TABLE[first] = band(crc, 0xFFFF)
end

-- Returns the slot of all keys with this hash tag: CRC-16/XMODEM.
function M.slot(tag)
  local crc = 0
  for i = 1, #tag do
    crc = band(bxor(lshift(crc, 8), CRC_TABLE[band(bxor(rshift(crc, 8), byte(tag, i)), 255)]), 0xFFFF)
  end
  return crc % SLOTS
end

local slot = M.slot

local Cluster = {}
Cluster.__index = Cluster

function M.new(seeds)
  local names, addresses = {}, {}
  for i, seed in ipairs(seeds) do
    names[i] = seed.text
    addresses[seed.text] = seed
  end
  return setmetatable({
    spans_keys = false, fails_over = true, text = "the cluster of " .. table.concat(names, ", "),
    suggested_url = server_address.url(seeds[1], ""),
    _seeds = seeds, _addresses = addresses, _owners = {}, _masters = {}, _suspects = {}, _stale = true,
    _refreshed_at = -1,
  }, Cluster)
end

function Cluster:node(tag)
  if self._stale and ngx.now() - self._refreshed_at > REFRESH_INTERVAL_S then return nil end
  return self._owners[slot(tag)]
end

function Cluster:owner(tag) return self._owners[slot(tag)] end

-- Returns one address for each host and port, so that its connections are reused. No host: that of the node that
-- replied.
function Cluster:_at(from, host, port)
  if not host or host == "" or host == "?" then host = from.host end
  local host_port = host .. ":" .. port
  local address = self._addresses[host_port]
  if not address then
    address = server_address.at(self._seeds[1], host, port)
    self._addresses[host_port] = address
  end
  return address
end

-- Returns the nodes to ask for the map: masters before seeds, those that did not reply last.
function Cluster:_candidates()
  local trusted, suspected, added = {}, {}, {}
  for _, list in ipairs { self._masters, self._seeds } do
    for _, address in ipairs(list) do
      if not added[address] then
        local target = self._suspects[address] and suspected or trusted
        added[address], target[#target + 1] = true, address
      end
    end
  end
  for _, address in ipairs(suspected) do trusted[#trusted + 1] = address end
  return trusted
end

function Cluster:discover(deadline_at)
  self._refreshed_at = ngx.now() -- other calls use the known map meanwhile
  local candidates = self:_candidates()
  local reply, at, unanswered = first_reply(candidates, SLOTS_COMMAND, deadline_at, "node", NO_SLOTS_TEXT)
  if not reply then return unanswered end
  local from, owners, masters, added, slots_served = candidates[at], {}, {}, {}, 0
  for _, range in ipairs(reply) do
    local owner = self:_at(from, range[3][1], range[3][2])
    for slot_number = range[1], range[2] do owners[slot_number] = owner end
    slots_served = slots_served + range[2] - range[1] + 1
    if not added[owner] then added[owner], masters[#masters + 1] = true, owner end
  end
  for _, address in ipairs(unanswered) do self._suspects[address] = true end
  self._suspects[from] = nil
  self._owners, self._masters, self._stale = owners, masters, slots_served < SLOTS
  return nil
end

function Cluster:follow_redirect(redirect, from)
  local target = self:_at(from, redirect.host, redirect.port)
  if not redirect.is_temporary then
    self._owners[redirect.slot] = target
    self._stale = true -- where one slot moved, others moved too
  end
  return target
end

function Cluster:suspect(address)
  self._suspects[address] = true
  self._stale = true
end

return M
