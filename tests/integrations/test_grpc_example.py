"""examples/grpc_server.py, of threads and of asyncio, on memory and on Redis."""

import subprocess
import sys
from typing import Any

import grpc
import pytest

from tests.integrations.example_server import START_TIMEOUT_S, engine_url, environment
from tests.repo_rules.repository import ROOT
from tests.servers.redis_server import free_port


@pytest.mark.parametrize("case", ["threads memory", "aio memory", "threads redis", "aio redis"])
def test_the_grpc_example_limits_as_it_says(case: str, request: pytest.FixtureRequest) -> None:
    style, engine = case.split()
    port = str(free_port())
    words = [sys.executable, "examples/grpc_server.py", port, *(["aio"] if style == "aio" else [])]
    process = subprocess.Popen(words, env=environment(engine_url(engine, request)), cwd=ROOT)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(START_TIMEOUT_S)
            order: Any = channel.unary_unary("/shop.Orders/Order")
            watch: Any = channel.unary_stream("/shop.Orders/Watch")
            user = (("x-user", "ann"),)
            assert [order(b"7", metadata=user, timeout=30) for _ in range(3)] == [b"ordered 7"] * 3
            with pytest.raises(grpc.RpcError, match="Try again in") as refused:
                order(b"7", metadata=user, timeout=30)
            error: Any = refused.value
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert int(dict(error.trailing_metadata())["retry-after"]) <= 20
            with pytest.raises(grpc.RpcError, match="user is missing"):
                order(b"7", timeout=30)
            for _ in range(3):
                watched = watch(b"7", timeout=30)
                assert list(watched) == [b"7 is packed", b"7 is sent"]
                assert '"app";q=100;w=60' in dict(watched.trailing_metadata())["ratelimit-policy"]
    finally:
        process.terminate()
        process.wait()
