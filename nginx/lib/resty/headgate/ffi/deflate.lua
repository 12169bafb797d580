-- Compresses texts by zlib, which nginx has for gzip: raw deflate with a dictionary, as zlib.compressobj of Python does
-- with wbits=-15 and zdict.
--
-- Law (tests/nginx/telemetry/test_recent_records.py): Python reads what is written here.

local ffi = require "ffi"

ffi.cdef [[
typedef struct {
  const char *next_in; unsigned int avail_in; unsigned long total_in;
  char *next_out; unsigned int avail_out; unsigned long total_out;
  const char *msg; void *state; void *zalloc; void *zfree; void *opaque;
  int data_type; unsigned long adler; unsigned long reserved;
} headgate_z_stream;
const char *headgate_zlib_version(void) __asm__("zlibVersion");
int headgate_deflate_init(headgate_z_stream *stream, int level, int method, int window_bits, int memory_level,
  int strategy, const char *version, int stream_size) __asm__("deflateInit2_");
int headgate_deflate_dictionary(headgate_z_stream *stream, const char *text, unsigned int length)
  __asm__("deflateSetDictionary");
int headgate_deflate(headgate_z_stream *stream, int flush) __asm__("deflate");
int headgate_deflate_reset(headgate_z_stream *stream) __asm__("deflateReset");
]]

local M = {}

local C, floor = ffi.C, math.floor
local LEVEL, DEFLATED, RAW_WINDOW_BITS, MEMORY_LEVEL, DEFAULT_STRATEGY = 6, 8, -15, 8, 0
local FINISH, OK, STREAM_END = 4, 0, 1

local stream, buffer, buffer_size

-- Returns whether this nginx has zlib.
function M.is_available()
  return (pcall(function() return C.headgate_zlib_version() end))
end

local function open_stream()
  stream = ffi.new("headgate_z_stream")
  local code = C.headgate_deflate_init(stream, LEVEL, DEFLATED, RAW_WINDOW_BITS, MEMORY_LEVEL, DEFAULT_STRATEGY,
    C.headgate_zlib_version(), ffi.sizeof(stream))
  if code ~= OK then error("zlib answers " .. code) end
end

-- Returns the compressed text.
function M.compress(text, dictionary)
  if stream then C.headgate_deflate_reset(stream) else open_stream() end
  C.headgate_deflate_dictionary(stream, dictionary, #dictionary)
  local size = #text + floor(#text / 1000) + 64 -- what cannot be compressed becomes a little longer
  if not buffer or buffer_size < size then buffer, buffer_size = ffi.new("char[?]", size), size end
  stream.next_in, stream.avail_in = text, #text
  stream.next_out, stream.avail_out = buffer, buffer_size
  local code = C.headgate_deflate(stream, FINISH)
  if code ~= STREAM_END then error("zlib answers " .. code) end
  return ffi.string(buffer, buffer_size - stream.avail_out)
end

return M
