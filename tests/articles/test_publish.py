"""Publishing: the scripts are loaded, their SHA1 are where gateways look, and trouble is told."""

import pytest

from headgate import EngineUnavailable
from headgate.engine.redis.publish import NAMES, publish
from tests.articles.gateway import Gateway
from tests.servers import RedisServer


def test_the_sha1_is_stored_and_the_script_is_loaded(server: RedisServer) -> None:
    for script in publish(server.url):
        assert server.call("GET", script.key) == script.sha.encode()
        assert server.call("SCRIPT", "EXISTS", script.sha) == [1]
        assert server.call("TTL", script.key) == -1
    assert [script.key for script in publish(server.url)] == [f"lua:sha1:{name}" for name in NAMES]


def test_publishing_again_changes_nothing_for_who_is_limited(driven_server: RedisServer) -> None:
    gateway = Gateway(driven_server)
    gateway.limiter("init", 1, 1)
    gateway.limiter("acquire", 1)
    publish(driven_server.url)
    assert gateway.limiter("acquire", 1) == -1


def test_after_the_scripts_were_flushed_publishing_brings_them_back(server: RedisServer) -> None:
    gateway = Gateway(server)
    server.call("SCRIPT", "FLUSH")
    assert str(gateway.limiter("init", 1, 1)).startswith("NOSCRIPT")
    publish(server.url)
    assert gateway.limiter("init", 1, 1) == 1


def test_a_user_who_may_not_is_told_which_right_is_missing() -> None:
    rules = ["user gate on >secret ~* +@connection +set"]
    with RedisServer(config=rules) as server:
        url = f"redis://gate:secret@127.0.0.1:{server.port}/0"
        with pytest.raises(EngineUnavailable, match=r"lacks the right to run script\|load") as refused:
            publish(url)
        assert "secret" not in str(refused.value)


def test_nobody_there_is_told() -> None:
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1 "):
        publish("redis://:secret@127.0.0.1:1/0")
