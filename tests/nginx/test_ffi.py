"""The shared dict and header fields, past lua-resty-core: what it would have answered and sent."""

import http.client
import json
from collections.abc import Iterator

import pytest

from tests.servers import Nginx

HTTP = "lua_shared_dict ours 1m; lua_shared_dict plain 1m; lua_shared_dict full 32k;"
SERVER = r"""
location = /walk { content_by_lua_block {
  local random, dict, plain = math.random, require("resty.headgate.ffi.shared_dict").open("ours"), ngx.shared.plain
  assert(dict ~= ngx.shared.ours, "it is the dict of lua-resty-core")
  math.randomseed(tonumber(ngx.var.arg_seed))
  local keys = { "a", "b", "c", string.rep("k", 300), string.rep("x", 65535), string.rep("x", 65536), "\0\255" }
  local texts = { "", "1", "a\0b\255c", string.rep("z", 500), string.rep("z", 4096), string.rep("z", 9000) }
  local lives = { nil, 0, 100, 100.25 }
  local function value() return random() < 0.5 and texts[random(#texts)] or random(-5, 5) * 2 ^ random(-20, 50) end
  local verbs = {
    get = function(on, key) return on:get(key) end,
    incr = function(on, key, by) return on:incr(key, by) end,
    safe_set = function(on, key, _, ...) return on:safe_set(key, ...) end,
    safe_add = function(on, key, _, said, life) return on:safe_add(key, said, life) end,
    delete = function(on, key) return on:delete(key) end,
    expire = function(on, key, _, _, life) return on:expire(key, life or 0) end,
    truth = function(on, key) return (on.native or on):set(key, random() < 2) end,
  }
  local names = { "get", "get", "get", "incr", "safe_set", "safe_set", "safe_add", "delete", "expire", "truth" }
  local counts = {}
  for step = 1, 4000 do
    local name = names[random(#names)]
    local key, by, said, life, flags = keys[random(#keys)], random(-9, 9), value(), lives[random(4)], random(0, 2)
    local a, b, c = verbs[name](dict, key, by, said, life, flags)
    local x, y, z = verbs[name](plain, key, by, said, life, flags)
    local ours, others = ngx.shared.ours:ttl(key), plain:ttl(key)
    local alike = a == x and b == y and (c or false) == (z or false)
    if not alike or math.abs((ours or -1) - (others or -1)) > 0.2 then
      local told, wanted = tostring(a) .. " " .. tostring(b), tostring(x) .. " " .. tostring(y)
      ngx.say(step, " ", name, " ", #key, ": ", told, ", not ", wanted)
      return
    end
    counts[name .. (a and "" or " not")] = (counts[name .. (a and "" or " not")] or 0) + 1
  end
  for _, name in ipairs { "get", "get not", "incr", "incr not", "safe_set", "safe_add", "safe_add not" } do
    if (counts[name] or 0) < 20 then ngx.say("too seldom: ", name) return end
  end
  ngx.say("alike")
} }
location = /full { content_by_lua_block {
  local dict = require("resty.headgate.ffi.shared_dict").open("full")
  local done, why, count = true, nil, 0
  while done do
    count = count + 1
    done, why = dict:safe_set("key " .. count, string.rep("v", 100), 100)
  end
  ngx.say(why, " ", count > 50, " ", dict:get("key 1") == string.rep("v", 100))
} }
location = /none { content_by_lua_block {
ngx.say(tostring(require("resty.headgate.ffi.shared_dict").open("nobody's"))) } } location = /other {
content_by_lua_block {
  -- A lua-resty-core that declares them otherwise.
  package.loaded["resty.headgate.ffi.shared_dict"] = nil
  local shdict = package.loaded["resty.core.shdict"]
  package.loaded["resty.core.shdict"] = nil
  package.preload["resty.core.shdict"] = function() error("not as it was") end
  local dict = require("resty.headgate.ffi.shared_dict").open("plain")
  package.loaded["resty.core.shdict"], package.preload["resty.core.shdict"] = shdict, nil
  ngx.say(dict == ngx.shared.plain)
} }
location = /fields { content_by_lua_block {
  local fields = ngx.var.arg_by == "ours" and require("resty.headgate.ffi.response_headers") or ngx.header
  fields["RateLimit"] = '"a";r=3;t=4'
  fields["Retry-After"] = 12
  fields["Content-Type"] = "text/x-odd"
  fields["Location"] = "/there"
  fields["X-Odd"] = "a\r\nSet-Cookie: b\255"
  fields["X-Twice"] = "first"
  fields["x-twice"] = "second"
  fields["Content-Length"] = 3
  ngx.print("ok\n")
  local fine, why = pcall(function() fields["Late"] = "x" end)
  ngx.log(ngx.NOTICE, "late: ", tostring(fine), " ", tostring(why))
} }
"""


@pytest.fixture(scope="module")
def gate() -> Iterator[Nginx]:
    with Nginx(SERVER, HTTP) as running:
        yield running


def fetch(gate: Nginx, path: str) -> tuple[str, list[tuple[str, str]]]:
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert answer.status == 200, body + gate.log
    return body.strip(), [pair for pair in answer.getheaders() if pair[0] not in ("Date", "Server")]


@pytest.mark.parametrize("seed", range(5))
def test_the_dict_answers_what_that_of_nginx_answers(gate: Nginx, seed: int) -> None:
    assert fetch(gate, f"/walk?seed={seed}")[0] == "alike"


def test_a_dict_that_is_full(gate: Nginx) -> None:
    assert fetch(gate, "/full")[0] == "no memory true true"


def test_no_dict_and_another_library(gate: Nginx) -> None:
    assert fetch(gate, "/none")[0] == "nil"
    assert fetch(gate, "/other")[0] == "true"


def test_fields_are_sent_as_nginx_sends_them(gate: Nginx) -> None:
    ours, plain = fetch(gate, "/fields?by=ours"), fetch(gate, "/fields")
    assert ours == plain
    assert json.dumps(ours[1]).count("ateLimit") == 1
    assert "Set-Cookie" not in dict(ours[1])
