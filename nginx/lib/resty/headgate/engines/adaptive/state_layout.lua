-- The layout of what the dict stores for an adaptive limit: one struct of numbers, which the functions of adaptive/
-- read and change as if it were a table.
--
-- The first number names the layout. After a reload with another version of this code, a state of another layout is no
-- state, and the limit begins anew.
--
-- Beside the calls in flight it has those of each worker, by the worker's slot and epoch (worker_leases.lua), so that
-- the calls of a worker that died can be told from others.

local ffi = require "ffi"

local adaptive_concurrency = require "resty.headgate.adaptive.adaptive_concurrency"
local concurrency_gate = require "resty.headgate.adaptive.concurrency_gate"
local rate_gate = require "resty.headgate.adaptive.rate_gate"
local rejection_ratio = require "resty.headgate.adaptive.rejection_ratio"
local target_concurrency = require "resty.headgate.adaptive.target_concurrency"

local M = {}

local WORKERS = 128

M.WORKERS = WORKERS

-- Returns the declaration of these fields, each once, and a number for the layout.
local function declare(lists)
  local names, is_declared = {}, {}
  for _, list in ipairs(lists) do
    for _, name in ipairs(list) do
      if not is_declared[name] then names[#names + 1], is_declared[name] = name, true end
    end
  end
  local text = table.concat(names, ", ")
  return "double " .. text .. ";", ngx.crc32_long(text .. WORKERS)
end

-- Returns functions that decode and encode structs of this type, whose first field is the layout.
local function codec(ctype, layout)
  local size = ffi.sizeof(ctype)
  local function decode(struct, text)
    if not text or #text ~= size then return false end
    ffi.copy(struct, text, size)
    return struct.layout == layout
  end
  local function clear(struct)
    ffi.fill(struct, size)
    struct.layout = layout
  end
  local function encode(struct) return ffi.string(struct, size) end
  return { new = function() return ffi.new(ctype) end, decode = decode, encode = encode, clear = clear }
end

do
  local fields, layout = declare {
    { "layout", "settings_id", "algorithm_id", "since_ns" }, concurrency_gate.FIELDS, adaptive_concurrency.FIELDS,
    target_concurrency.FIELDS, rate_gate.FIELDS,
  }
  ffi.cdef("typedef struct { " .. fields .. " uint32_t epochs[" .. WORKERS .. "]; uint32_t calls_of[" .. WORKERS
    .. "]; } headgate_adaptive_gate;")
  M.gate = codec("headgate_adaptive_gate", layout)
end

do
  local fields, layout = declare { { "layout" }, rejection_ratio.FIELDS }
  ffi.cdef("typedef struct { " .. fields .. " double counts[" .. rejection_ratio.MAX_CLASSES .. "]; uint8_t recent["
    .. rejection_ratio.RECENT_CALLS .. "]; } headgate_rejection_ratio;")
  M.ratio = codec("headgate_rejection_ratio", layout)
end

return M
