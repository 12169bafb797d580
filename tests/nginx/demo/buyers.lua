-- For wrk: the buyers of one nginx. Some look around, then the doors open and everybody comes; one of them is a bot.
--
-- Between two requests a connection waits a random time, so arrivals are at random and as many as the sale wants, not as
-- many as the machine can. Before wrk ends all connections have fallen silent: no request is cut off on its way.

local ffi = require "ffi"
ffi.cdef [[
  typedef struct { long seconds, nanos; } headgate_time;
  int clock_gettime(int clock, headgate_time *found);
]]

local function setting(name) return tonumber(os.getenv("SALE_" .. name)) end

local begins, doors, ends = setting "BEGINS", setting "DOORS", setting "ENDS" -- epoch seconds
local calm, rush = setting "CALM_MS", setting "RUSH_MS" -- how long a connection waits, on average
local bot, others = setting "BOT", setting "OTHERS" -- parts of all requests: the bot's, and those for anything but the phone
local BUYERS = 20000
local ITEMS = { "book", "lamp", "mug" }
local SILENT_MS = 3600000

local time = ffi.new("headgate_time")

local function now()
  ffi.C.clock_gettime(0, time)
  return tonumber(time.seconds) + tonumber(time.nanos) / 1e9
end

function init()
  ffi.C.clock_gettime(0, time)
  math.randomseed((tonumber(time.nanos) + setting "SEED") % 2147483647)
end

function delay()
  local at = now()
  if at < begins then return math.floor((begins - at) * 1000 + math.random() * 2 * calm) end
  local pause = math.random() * 2 * (at < doors and calm or rush)
  if at < doors and at + pause / 1000 > doors then pause = (doors - at) * 1000 + math.random() * 2 * rush end
  if at + pause / 1000 >= ends then return SILENT_MS end
  return math.floor(pause + 0.5)
end

local function who_and_what()
  local dice = math.random()
  if dice < bot then return "bot", "phone" end
  local buyer = "buyer-" .. math.random(BUYERS)
  if dice < bot + others then return buyer, ITEMS[math.random(#ITEMS)] end
  return buyer, "phone"
end

function request()
  local buyer, item = who_and_what()
  return wrk.format("POST", "/buy/" .. item, { Cookie = "uid=" .. buyer })
end
