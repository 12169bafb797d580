-- The engine on a shared dict: the same models, exact over all workers of one nginx.
--
-- A decision takes the locks of its counts, reads them, asks the model, writes, and frees the locks; in between the
-- worker never yields. The real time is read while the locks are held, so whoever decides later sees no earlier time;
-- nginx's cached clock is another one in each worker, and would mint units (clock.lua). One charge on plain terms goes
-- the short way below; everything else goes through joint.lua.
--
-- What can fail is done before a lock is taken: the windows of a calendar are known then.
--
-- A worker that is killed loses nothing but the decision it was in, whose charges it may have saved in part. Counts
-- outlive a reload, and die with nginx.
--
-- Laws (tests/nginx/shared):
--   - the facts are those of every other engine, at every microsecond (test_parity.py, test_vectors.py);
--   - however many workers decide at once, exactly the limit passes (test_exact.py, ../test_worker_clocks.py);
--   - a full dict lets nobody pass uncounted and forgets no live count (test_room.py).

local clock = require "resty.headgate.clock"
local dicts = require "resty.headgate.ffi.shared_dict"
local hands = require "resty.headgate.engines.shared.bound_limits"
local joint = require "resty.headgate.engines.shared.take_all"
local lock = require "resty.headgate.engines.shared.lock"
local room = require "resty.headgate.engines.shared.overflow"
local slots = require "resty.headgate.engines.shared.slot_table"

local M = { refuses = hands.refuses }

local Engine = {}
Engine.__index = Engine

local now_us = clock.wall_us
local named, limit_at, lock_of, take, free = hands.named, hands.limit_at, lock.of, lock.take, lock.free

-- `chosen`: dict (its name), prefix.
function M.new(chosen)
  local name = chosen.dict or "headgate"
  local dict = dicts.open(name)
  if not dict then
    error('There is no shared dict "' .. name .. '": write lua_shared_dict ' .. name .. " 20m; in the http block.", 0)
  end
  local laid, trouble = lock.lay(dict)
  if not laid then error('The shared dict "' .. name .. '" cannot hold its locks: ' .. trouble .. ".", 0) end
  return setmetatable({
    dict = dict, prefix = chosen.prefix or "hg", zones = {}, bound = setmetatable({}, { __mode = "k" }), spares = {},
  }, Engine)
end

local function first(answers, trouble) return answers and answers[1], trouble end

-- A hand as this engine has it.
function Engine:own(hand)
  local own = self.bound[hand]
  if not own then
    own = hands.bind(self.dict, hand, self.prefix)
    self.bound[hand] = own
  end
  return own
end

-- A plate comes in force: its hands that count here get the room that they may need one day.
function Engine:use(plate)
  self.zones = plate.zones or {}
  local former, spares = self.spares, {}
  for _, by_aside in pairs(plate.hands or {}) do
    for _, some in pairs(by_aside) do
      for _, hand in ipairs(some) do
        if hand.here then
          local spare = self:own(hand).spare
          spares[spare.name] = spare
          spare:stay()
        end
      end
    end
  end
  for name, spare in pairs(former) do
    if not spares[name] then spare:leave() end
  end
  self.spares = spares
end

-- Outcome of one charge; or nil and a Trouble.
function Engine:take(charge, deadline)
  local dict, hand = self.dict, charge.hand
  local own = self.bound[hand] or self:own(hand)
  if not own.plain then return first(joint.decide(self, { charge }, 1, deadline)) end
  local name, lock_name = named(own.head, charge.key), lock_of(charge.key)
  if own.calendar then limit_at(own, self.zones, now_us()) end
  local ticket, trouble = take(dict, lock_name, deadline)
  if not ticket then return nil, trouble end
  local at_us = now_us()
  local limit = own.calendar and limit_at(own, self.zones, at_us) or own.limit
  local before = own.load(dict, name, own, limit, at_us)
  local facts, after = own.decide(limit, before, at_us, charge.cost, -1)
  local saved = true
  if after ~= before then
    saved = own.save(dict, name, own, limit, after, at_us)
    if not saved and before then own.save(dict, name, own, limit, before, at_us) end
  end
  free(dict, lock_name, ticket)
  if saved then return facts end
  return first(joint.decide(self, { charge }, 1, deadline))
end

-- Outcome for each charge, in order; or nil and a Trouble. commit: 1, or 0 to be told only.
function Engine:decide(charges, commit, deadline)
  if commit == 1 and charges[2] == nil then
    local facts, trouble = self:take(charges[1], deadline)
    return facts and { facts }, trouble
  end
  return joint.decide(self, charges, commit, deadline)
end

-- The lock of a key is held while `act(at_us)` runs.
local function locked(self, key, deadline, act)
  local lock_name = lock_of(key)
  local ticket, trouble = take(self.dict, lock_name, deadline)
  if not ticket then return nil, trouble end
  local answer, wrong = act(now_us())
  free(self.dict, lock_name, ticket)
  return answer, wrong
end

local function full(name) return { kind = "wrong", text = "The shared dict is full: " .. name .. " has no room." } end

-- Gives back what the charge took; tells how things stand after it.
function Engine:refund(charge, facts, deadline)
  local own = self:own(charge.hand)
  local store, name, key = self.dict, named(own.head, charge.key), charge.key
  if facts.overflow then store, name, key = own.spare, own.spare.name, own.spare.name end
  local took = facts[1] == 1 and charge.cost > 0
  local receipt = {
    cost = charge.cost, at_us = facts[6], reset_after_us = facts[4], delay_us = facts[5], mark = facts[7], returned = 0,
  }
  limit_at(own, self.zones, now_us())
  return locked(self, key, deadline, function(at_us)
    local limit = limit_at(own, self.zones, at_us)
    local before = own.load(store, name, own, limit, at_us)
    local after = took and own.model.refund(limit, before, at_us, charge.cost, receipt, false) or nil
    if after and not own.save(store, name, own, limit, after, at_us) then
      own.save(store, name, own, limit, before, at_us)
      return nil, full(name)
    end
    local answer = own.decide(limit, after or before, at_us, 0, -1)
    if facts.overflow then answer.overflow = true end
    return answer
  end)
end

-- A slot: Outcome, whose mark is the fence; or nil and a Trouble.
function Engine:acquire(charge, deadline)
  local own = self:own(charge.hand)
  local name = named(own.head, charge.key)
  local fences = lock.fence_of(lock_of(charge.key))
  local function ask(at_us) return slots.acquire(self.dict, self.dict, name, own.limit, at_us, fences) end
  local facts, trouble = locked(self, charge.key, deadline, ask)
  if not facts and not trouble and room.make(self.dict) then
    facts, trouble = locked(self, charge.key, deadline, ask)
  end
  if facts or trouble then return facts, trouble end

  local spare = own.spare
  room.tell("new keys are counted together, as " .. spare.name)
  facts, trouble = locked(self, spare.name, deadline, function(at_us)
    return slots.acquire(self.dict, spare, spare.name, own.limit, at_us, lock.fence_of(lock_of(spare.name)))
  end)
  if not facts then return nil, trouble or full(spare.name) end
  facts.overflow = true
  if facts[1] == 1 then facts[7] = -facts[7] end
  return facts
end

local function of_lease(self, verb, charge, fence, deadline)
  local own = self:own(charge.hand)
  local store, name, key = self.dict, named(own.head, charge.key), charge.key
  if fence < 0 then store, name, key, fence = own.spare, own.spare.name, own.spare.name, -fence end
  return locked(self, key, deadline, function(at_us) return verb(store, name, own.limit, fence, at_us) end)
end

-- Whether the lease is still held, and now for its whole time again; or nil and a Trouble.
function Engine:renew(charge, fence, deadline) return of_lease(self, slots.renew, charge, fence, deadline) end

-- Whether the lease was still held; or nil and a Trouble.
function Engine:release(charge, fence, deadline) return of_lease(self, slots.release, charge, fence, deadline) end

return M
