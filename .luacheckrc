-- Lua 5.1 as Redis, Valkey and nginx speak it. Each folder names the few globals it may read; none may be set.

std = "none"
max_line_length = 120

-- The model: arithmetic on what it is given. No redis, no ngx, no os, and no tostring, which rounds numbers.
files["src/headgate/lua/algorithms"].read_globals = {
  "ipairs", "tonumber", "type",
  math = { fields = { "abs", "ceil", "exp", "floor", "fmod", "frexp", "huge", "log", "max", "min", "pow", "sqrt" } },
  string = { fields = { "byte", "find", "format", "gmatch", "match", "sub" } },
  table = { fields = { "concat", "insert", "remove" } },
}

-- The commands: what the server offers a script, and what the assembler puts above it.
files["src/headgate/lua/commands"].std = "lua51"
files["src/headgate/lua/commands"].read_globals = {
  "redis", "KEYS", "ARGV", "struct", "cjson", "cmsgpack", "bit",
  "model", "models", "storage", "storages", "wrong_value",
  "pause", "load_pause", "outlive",
}

-- The nginx gateway: LuaJIT, and the modules beside it. What knows no nginx may not touch `ngx`.
files["nginx/lib"].read_globals = {
  "error", "getmetatable", "ipairs", "next", "pairs", "pcall", "rawget", "rawset", "require", "select", "setfenv", "setmetatable",
  "tonumber", "tostring", "type", "unpack",
  io = { fields = { "open" } },
  math = { fields = { "abs", "ceil", "floor", "fmod", "frexp", "huge", "ldexp", "log", "max", "min", "random", "randomseed", "sqrt" } },
  os = { fields = { "rename", "remove", "getenv" } },
  string = { fields = { "byte", "char", "find", "format", "gmatch", "gsub", "lower", "match", "rep", "sub", "upper" } },
  table = { fields = { "concat", "insert", "remove", "sort" } },
  ngx = { other_fields = true, read_only = false, fields = { "header", "status", "var", "ctx" } },
}
