-- The plate in force: where it comes from, and how it stays up to date. One for each worker.
--
-- Every worker looks twice a second and more, at two fields in Redis or at a file; only what is new is read. What
-- cannot be followed is refused, told once, and the plate in force stays. A source that is gone, or is empty all of a
-- sudden, changes nothing: limits do not fall because their book is away.
--
-- The last good plate also lies in the shared dict, where new workers find it after a reload, and on disk if nginx was
-- told where (`keep`), so that a restart without Redis follows the last book that was known.
--
-- Laws (tests/nginx/rules/test_bundle_watcher.py): the plate in force is always the last good one that was seen; a
-- change is followed within a second by every worker; a broken one is told once; and that there is none, so nothing is
-- limited, is told once for all workers, after a start and after a reload; so are the warnings of a book. Rules that
-- are split among those who count themselves are compiled anew within a second of a change of their number
-- (tests/nginx/engines/test_split_limits.py).

local json = require "resty.headgate.text.json"
local naming = require "resty.headgate.engines.redis.keys"
local plates = require "resty.headgate.rules.bundle"

local M = {}

local INTERVAL = 0.4 -- seconds between two looks
local PATIENCE = 1.0 -- seconds for one answer
local KEPT, UNLIMITED, WARNED = "p:plate", "p:unlimited", "p:warned:"

local Follower = {}
Follower.__index = Follower

-- `said`: source ("redis" or "file"), path, keep, dict, prefix, engine (of Redis), chosen (for plates), on_plate.
function M.new(said)
  local self = setmetatable(said, Follower)
  self.told, self.stamp = {}, nil
  return self
end

-- A line in the log, once until it changes or is all right again.
function Follower:tell(what, words)
  if self.told[what] == words then return end
  self.told[what] = words
  if words then ngx.log(ngx.ERR, "headgate: ", words) end
end

-- Nothing is limited: one of all workers says so.
function Follower:warn(why)
  if self.warned then return end
  self.warned = true
  local _, known = self.dict:safe_add(UNLIMITED, true)
  if known == "exists" then return end
  ngx.log(ngx.WARN, "headgate: there is no rulebook, so nothing is limited: ", why)
end

-- The name under which the workers know that a plate's warnings were logged; nil if it has none.
local function warned_name(plate)
  if not plate or #plate.warnings == 0 then return nil end
  return WARNED .. ngx.crc32_long(table.concat(plate.warnings, "\n"))
end

-- Logs what looks wrong in a new plate's book: one of all workers does, and at a start or a reload the master.
function Follower:log_warnings(before, plate)
  local old, name = warned_name(before), warned_name(plate)
  if old and old ~= name then self.dict:delete(old) end
  if not name then return end
  local _, known = self.dict:safe_add(name, true)
  if known == "exists" and ngx.get_phase() ~= "init" then return end
  for _, warning in ipairs(plate.warnings) do ngx.log(ngx.WARN, "headgate: ", warning) end
end

-- Puts a plate in force; false and a sentence if it cannot be followed.
function Follower:take(text)
  local fine, plate = pcall(plates.compile, text, self.chosen)
  if not fine then return false, plate end
  local why
  fine, why = pcall(self.on_plate, plate)
  if not fine then
    if self.plate then self.on_plate(self.plate) end
    return false, why
  end
  plate.text = text
  local before = self.plate
  self.plate = plate
  self:tell("note", plate.note)
  if not (before and before.text == text) then self:log_warnings(before, plate) end
  return true
end

local function read(path)
  local file, why = io.open(path, "rb")
  if not file then return nil, why end
  local text = file:read("*a")
  file:close()
  return text
end

-- Written beside and then renamed: nobody ever reads half of it.
local function write(path, text)
  local beside = path .. "." .. ngx.worker.pid()
  local file, why = io.open(beside, "wb")
  if not file then return why end
  local done
  done, why = file:write(text)
  file:close()
  if done then done, why = os.rename(beside, path) end
  if not done then os.remove(beside) end
  return not done and why or nil
end

-- For the next worker, and for the next start.
function Follower:keep_it(text)
  if self.dict:get(KEPT) == text then return end
  local fine, why = self.dict:safe_set(KEPT, text)
  if not fine then self:tell("dict", "the plate was not kept in the shared dict: " .. why .. ". Give it more room.") end
  if self.keep then
    why = write(self.keep, text)
    self:tell("keep", why and "the plate was not kept: " .. why or nil)
  end
end

local function begin_with(self, text, what)
  if not text then return false end
  local fine, why = self:take(text)
  if not fine then self:tell(what, what .. " cannot be followed: " .. why) end
  return fine
end

-- A plate to begin with, before anybody can be asked: the file that is watched, else what the dict or the disk kept. An
-- nginx that is told to follow a file, and has nothing to follow, does not start.
function Follower:begin()
  self.dict:delete(UNLIMITED)
  local wrong
  if self.source == "file" then
    local text, why = read(self.path)
    local fine
    if text then fine, why = self:take(text) end
    if fine then return self:keep_it(text) end
    wrong = "the rulebook " .. self.path .. " cannot be followed: " .. tostring(why)
  end
  if begin_with(self, self.dict:get(KEPT), "the plate in the shared dict")
    or begin_with(self, self.keep and read(self.keep), "the plate that was kept") then
    return wrong and self:tell("source", wrong)
  end
  if wrong then error("headgate: " .. wrong, 0) end
end

local function texts_of(self, plate, have)
  local missing, words = {}, { "HMGET", naming.scripts(self.prefix) }
  for _, sha in pairs(plate.scripts) do
    if not have[sha] then
      missing[#missing + 1] = sha
      words[#words + 1] = sha
    end
  end
  if #missing == 0 then return have end
  local found, trouble = self.engine:ask(words, nil, PATIENCE)
  if not found then return nil, trouble.text, true end
  local texts = {}
  for i, sha in ipairs(missing) do
    if type(found[i]) ~= "string" then
      return nil, "the script " .. sha .. " is not in " .. words[2] .. ": push the rulebook again."
    end
    texts[sha] = found[i]
  end
  for sha, text in pairs(have) do texts[sha] = text end
  return texts
end

-- A plate and its texts as one text, for whoever begins without Redis.
local function whole(document, texts)
  local pairs_of = {}
  for sha, text in pairs(texts) do pairs_of[#pairs_of + 1] = '"' .. sha .. '":' .. json.quoted(text) end
  return string.sub(document, 1, -2) .. ',"texts":{' .. table.concat(pairs_of, ",") .. "}}"
end

-- The plate of an edition; nil, why not, and whether that may pass by itself.
function Follower:fetch(version)
  local raw, trouble = self.engine:ask({ "HGET", naming.rules(self.prefix), version }, nil, PATIENCE)
  if trouble then return nil, trouble.text, true end
  if type(raw) ~= "string" then return nil, "it is missing. Push it again." end
  local document = json.decode(raw).document
  local texts, why, passing = texts_of(self, json.decode(document), self.plate and self.plate.texts or {})
  if not texts then return nil, why, passing end
  return whole(document, texts)
end

-- Looks at what was published. Why there is nothing to follow, if there is not.
function Follower:look_at_redis()
  local found, trouble = self.engine:ask({ "HMGET", naming.rules(self.prefix), "version", "at_us" }, nil, PATIENCE)
  if not found then
    self:tell("source", "the rulebook cannot be looked at: " .. trouble.text)
    return "it cannot be looked at: " .. trouble.text
  end
  self:tell("source", nil)
  local version, at_us = found[1], found[2]
  if type(version) ~= "string" then
    return 'none was pushed to Redis under the prefix "' .. self.prefix
      .. '". Push one: headgate rules push RULEBOOK --engine URL'
  end
  local stamp = version .. "@" .. tostring(at_us)
  if stamp == self.stamp then return nil end
  local fine, text, why, passing = pcall(self.fetch, self, version)
  if not fine then text, why = nil, text end
  if text and not (self.plate and text == self.plate.text) then
    fine, why = self:take(text)
    if fine then self:keep_it(text) end
  end
  self:tell("edition", why and "edition " .. version .. " of the rulebook cannot be followed: " .. why or nil)
  if not passing then self.stamp = stamp end
  return why and "edition " .. version .. " cannot be followed"
end

function Follower:look_at_file()
  local text, why = read(self.path)
  if text and self.plate and text == self.plate.text then return self:tell("source", nil) end
  local fine
  if text then
    fine, why = self:take(text)
    if fine then self:keep_it(text) end
  end
  self:tell("source", why and "the rulebook " .. self.path .. " cannot be followed: " .. why or nil)
end

function Follower:look()
  local why
  if self.source == "redis" then why = self:look_at_redis() else self:look_at_file() end
  if why and not self.plate then self:warn(why) end
  self.looked = true
  if self.plate and plates.outdated(self.plate, self.chosen) then self:take(self.plate.text) end
end

local function every(premature, self)
  if premature then return end
  local fine, why = pcall(self.look, self)
  if not fine then self:tell("look", tostring(why)) end
  self.looked = true
  ngx.timer.at(INTERVAL, every, self)
end

-- From a worker's beginning on. One that takes the place of another finds what that one followed in the dict: the
-- master began before anybody knew it.
function Follower:start()
  local text = self.dict:get(KEPT)
  if text and not (self.plate and self.plate.text == text) then self:take(text) end
  ngx.timer.at(0, every, self)
end

-- The plate in force. A worker that has just begun, with nothing kept, waits for its first look.
function Follower:current()
  local plate = self.plate
  if plate or self.looked then return plate end
  for _ = 1, PATIENCE * 500 do
    ngx.sleep(0.002)
    if self.plate or self.looked then break end
  end
  return self.plate
end

return M
