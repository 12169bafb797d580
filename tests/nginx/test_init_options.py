"""Options of init: a mistake keeps nginx from starting, with a message that says what was expected."""

import re

import pytest

from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer

BOOK = {"rules": [{"name": "r", "limit": "10/s"}]}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("rule = 1", 'init knows no option "rule". Did you mean rules? It knows attributes, decision_log_salt, '),
        ('redsi = "redis://h"', 'init knows no option "redsi". Did you mean redis? It knows attributes, '),
        (
            "colour = 1",
            'init knows no option "colour". It knows attributes, decision_log_salt, decision_log_sample, '
            "denial_cache, dict, engine, keep",
        ),
        ("denial_cache = 1", "denial_cache is a boolean, not 1."),
        ("memo = false", 'init knows no option "memo". Write denial_cache = false.'),
        ("memo = true", 'init knows no option "memo". Write denial_cache = true.'),
        ('engine = "redis"', 'where is Redis? Write redis = "redis://127.0.0.1:6379/0".'),
        ('engine = "memory"', 'engine is "redis" or "shared", not "memory".'),
        ('redis = "http://127.0.0.1"', "http://… is not an engine URL"),
        ('redis = "redis://127.0.0.1?fallback=maybe"', "fallback is allow, deny or local"),
        ('dict = "other"', 'There is no shared dict "other": write lua_shared_dict other 20m; in the http block.'),
        (
            'attributes = { user = "cookie_uid" }',
            '"user" is an nginx variable, such as "$cookie_uid"',
        ),
        ('keep = "/no/such/folder/bundle.json"', "the folder cannot be opened (/no/such/folder/.: No such file"),
        ('keep = "/etc/passwd/bundle.json"', "the folder cannot be opened (/etc/passwd/.: Not a directory"),
        (
            "decision_log_sample = 2",
            "decision_log_sample is the part of the requests in the log, from 0 to 1, not 2",
        ),
        ("decision_log_sample = 0/0", "decision_log_sample is the part of the requests in the log, from 0 to 1"),
        ('decision_log_salt = "short"', "decision_log_salt has at least 8 characters."),
        ('keep = "/tmp/"', 'keep is a file, not a folder: write keep = "/tmp/bundle.json".'),
    ],
)
def test_a_mistake_keeps_nginx_from_starting(options: str, sentence: str) -> None:
    gate = NginxGateway(BOOK, options=options)
    try:
        with pytest.raises(RuntimeError) as failure:
            gate.start()
        assert sentence in str(failure.value)
    finally:
        gate.stop()


def test_without_a_rulebook_it_does_not_start() -> None:
    gate = NginxGateway(BOOK)
    gate.configure(http=gate.block("http").replace("rules =", "keep ="))
    try:
        with pytest.raises(RuntimeError, match="there is no rulebook: say where Redis is"):
            gate.start()
    finally:
        gate.stop()


@pytest.mark.parametrize(
    ("url", "options", "remembers"),
    [
        ("", "", True),
        ("?denial_cache=on", "", True),
        ("?denial_cache=off", "", False),
        ("", "denial_cache = false", False),
        ("?denial_cache=on", "denial_cache = false", False),
        ("?denial_cache=off", "denial_cache = true", True),
    ],
)
def test_the_denial_cache_is_switched_by_the_url_or_before_it_by_init(
    url: str, options: str, remembers: bool
) -> None:
    book = {"rules": [{"name": "r", "limit": "1/day"}]}
    options = ", ".join(["shed = false", *filter(None, [options])])
    with RedisServer() as server, NginxGateway(book, server.url + url, options=options) as gate:
        assert gate.get("/").status == 200
        server.call("CONFIG", "RESETSTAT")
        assert {gate.get("/").status for _ in range(50)} == {429}
        stats = server.call("INFO", "commandstats")
        assert isinstance(stats, bytes)
        match = re.search(rb"cmdstat_evalsha:calls=(\d+)", stats)
        script_calls = 0 if match is None else int(match[1])
    assert (script_calls < 50) == remembers  # a few all the same: refusals are remembered for a second
