-- The nodes of a cluster, and which of them answers for which slot. The twin of topology.Cluster.
--
-- All counts of one key lie in one slot: what stands between the braces, the hash tag, is the escaped key. The map is
-- asked for once, by CLUSTER SLOTS, and again when it turned out to be old: somebody was sent on, or did not answer.
-- While it is in doubt it is asked for every tenth of a second at most, and what is known holds meanwhile.
--
-- Laws (tests/nginx/engines/redis/test_cluster.py): the slot is the server's; MOVED changes the map for that slot at
-- once, ASK changes nothing; one that did not answer is asked for the map last.

local bit = require "bit"

local addresses = require "resty.headgate.engines.redis.server_address"
local first_answer = require "resty.headgate.engines.redis.first_reply"
local resp = require "resty.headgate.engines.redis.resp"

local band, bxor, lshift, rshift = bit.band, bit.bxor, bit.lshift, bit.rshift
local byte = string.byte

local M = {}

local SLOTS = 16384
local AGAIN = 0.1 -- seconds between two looks at a cluster that seems to have changed
local QUESTION = resp.command { "CLUSTER", "SLOTS" }
local LACKING = "it knows of no slots"

local steps = {}
for first = 0, 255 do
  local rest = lshift(first, 8)
  for _ = 1, 8 do
    rest = band(rest, 0x8000) ~= 0 and bxor(lshift(rest, 1), 0x1021) or lshift(rest, 1)
  end
  steps[first] = band(rest, 0xFFFF)
end

-- The slot of all keys with this hash tag: CRC-16 as XMODEM reckons it.
function M.slot(tag)
  local rest = 0
  for i = 1, #tag do
    rest = band(bxor(lshift(rest, 8), steps[band(bxor(rshift(rest, 8), byte(tag, i)), 255)]), 0xFFFF)
  end
  return rest % SLOTS
end

local slot = M.slot

local Cluster = {}
Cluster.__index = Cluster

function M.new(seeds)
  local names, known = {}, {}
  for i, seed in ipairs(seeds) do
    names[i] = seed.text
    known[seed.text] = seed
  end
  return setmetatable({
    joins = false, moves = true, text = "the cluster of " .. table.concat(names, ", "),
    instead = addresses.url(seeds[1], ""),
    _seeds = seeds, _known = known, _owners = {}, _masters = {}, _suspects = {}, _doubtful = true, _looked_at = -1,
  }, Cluster)
end

function Cluster:node(tag)
  if self._doubtful and ngx.now() - self._looked_at > AGAIN then return nil end
  return self._owners[slot(tag)]
end

function Cluster:owner(tag) return self._owners[slot(tag)] end

-- One address for each place, so that its connections are known again. No host: the one who said so.
function Cluster:_at(from, host, port)
  if not host or host == "" or host == "?" then host = from.host end
  local place = host .. ":" .. port
  local known = self._known[place]
  if not known then
    known = addresses.at(self._seeds[1], host, port)
    self._known[place] = known
  end
  return known
end

-- Whom to ask for the map: masters before seeds, those who did not answer last.
function Cluster:_asked()
  local trusted, doubted, seen = {}, {}, {}
  for _, list in ipairs { self._masters, self._seeds } do
    for _, address in ipairs(list) do
      if not seen[address] then
        local into = self._suspects[address] and doubted or trusted
        seen[address], into[#into + 1] = true, address
      end
    end
  end
  for _, address in ipairs(doubted) do trusted[#trusted + 1] = address end
  return trusted
end

function Cluster:discover(by)
  self._looked_at = ngx.now() -- whoever else doubts goes by what is known meanwhile
  local asked = self:_asked()
  local reply, at, silent = first_answer(asked, QUESTION, by, "node", LACKING)
  if not reply then return silent end
  local from, owners, masters, seen, served = asked[at], {}, {}, {}, 0
  for _, range in ipairs(reply) do
    local owner = self:_at(from, range[3][1], range[3][2])
    for each = range[1], range[2] do owners[each] = owner end
    served = served + range[2] - range[1] + 1
    if not seen[owner] then seen[owner], masters[#masters + 1] = true, owner end
  end
  for _, address in ipairs(silent) do self._suspects[address] = true end
  self._suspects[from] = nil
  self._owners, self._masters, self._doubtful = owners, masters, served < SLOTS
  return nil
end

function Cluster:sent_on(told, from)
  local to = self:_at(from, told.host, told.port)
  if not told.for_now then
    self._owners[told.slot] = to
    self._doubtful = true -- where one slot went, others went too
  end
  return to
end

function Cluster:suspect(address)
  self._suspects[address] = true
  self._doubtful = true
end

return M
