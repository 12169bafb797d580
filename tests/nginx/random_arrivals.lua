-- For wrk: each connection waits a random time between two requests, so that arrivals are at random and as many as the
-- test wants, not as many as the machine can.

local longest = tonumber(os.getenv("FLOOD_PAUSE_MS")) * 2

function init()
  math.randomseed(tonumber(tostring({}):match("0x(%x+)"), 16) % 2147483647)
end

function delay() return math.random(0, longest) end
