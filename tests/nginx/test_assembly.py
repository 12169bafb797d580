"""What init is told: a mistake in it keeps nginx from starting, and nginx's own words say what was meant."""

import pytest

from tests.nginx.gateway import Gateway

BOOK = {"rules": [{"name": "r", "limit": "10/s"}]}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("rule = 1", 'init knows no option "rule". It knows attributes, denial_cache, dict, engine, keep, prefix'),
        ("denial_cache = 1", "denial_cache is a boolean, not 1."),
        ("memo = false", 'init knows no option "memo". Write denial_cache = false.'),
        ('engine = "redis"', 'where is Redis? Write redis = "redis://127.0.0.1:6379/0".'),
        ('engine = "memory"', 'engine is "redis" or "shared", not "memory".'),
        ('redis = "http://127.0.0.1"', "http://… is not an engine URL"),
        ('redis = "redis://127.0.0.1?fallback=maybe"', "fallback is allow, deny or local"),
        ('dict = "other"', 'There is no shared dict "other": write lua_shared_dict other 20m; in the http block.'),
        (
            'attributes = { user = "cookie_uid" }',
            '"user" is an nginx variable, such as "$cookie_uid"',
        ),
    ],
)
def test_a_mistake_keeps_nginx_from_starting(options: str, sentence: str) -> None:
    gate = Gateway(BOOK, options=options)
    try:
        with pytest.raises(RuntimeError) as failure:
            gate.start()
        assert sentence in str(failure.value)
    finally:
        gate.stop()


def test_without_a_rulebook_it_does_not_start() -> None:
    gate = Gateway(BOOK)
    gate.configure(http=gate.said("http").replace("rules =", "keep ="))
    try:
        with pytest.raises(RuntimeError, match="there is no rulebook: say where Redis is"):
            gate.start()
    finally:
        gate.stop()
