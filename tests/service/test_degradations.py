"""/healthz, /readyz and gRPC health say what is degraded, and when it is over."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from headgate.service.grpc_health import CHECK, DEGRADED_FIELD, NOT_SERVING, SERVING, WATCH
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service

RULES = {"rules": [{"name": "api", "key": "user", "missing": "skip", "limit": "5/hour"}]}


def check(channel: grpc.Channel, name: str) -> tuple[int, list[str]]:
    call: Any = channel.unary_unary(CHECK)
    data, details = call.with_call(StringValue(value=name).SerializeToString(), timeout=20)
    fields = [str(value) for field, value in details.trailing_metadata() if field == DEGRADED_FIELD]
    return UInt32Value.FromString(data).value, fields


def test_an_engine_that_is_gone_and_comes_back() -> None:
    with RedisServer("redis") as redis:
        engine = f"{redis.url}?fallback=local"
        with Service(RULES, engine=engine) as service, grpc.insecure_channel(service.grpc) as channel:
            server = f"Redis at 127.0.0.1:{redis.port}"
            sentence = f"{server} does not answer; calls are decided by the fallbacks of their rules."
            assert service.send_request("GET", "/healthz").body == b"ok\n"
            assert check(channel, "engine") == (SERVING, [])
            watch: Any = channel.unary_stream(WATCH)
            watched = watch(StringValue(value="engine").SerializeToString(), timeout=120)
            assert UInt32Value.FromString(next(watched)).value == SERVING
            redis.stop()

            def healthy() -> str | None:
                service.check(user="ann")
                return (
                    None
                    if service.send_request("GET", "/healthz").body == f"degraded\n{sentence}\n".encode()
                    else "ok"
                )

            until(healthy, 30)
            ready = service.send_request("GET", "/readyz")
            assert (ready.status, ready.json["ready"], ready.json["degraded"]) == (200, True, [sentence])
            assert check(channel, "engine") == (NOT_SERVING, [sentence])
            assert check(channel, "") == (SERVING, [sentence])
            assert UInt32Value.FromString(next(watched)).value == NOT_SERVING
            redis.start()

            def degraded() -> str | None:
                service.check(user="ann")
                return None if service.send_request("GET", "/healthz").body == b"ok\n" else "degraded"

            until(degraded, 30)
            assert check(channel, "engine") == (SERVING, [])
            assert UInt32Value.FromString(next(watched)).value == SERVING
            watched.cancel()
            line = f"Redis at 127.0.0.1:{redis.port} answers again after "

            def silent() -> str | None:
                service.check(user="ann")  # a call after the settling ends the outage
                return None if line in service.output else "the log does not say so"

            until(silent, 30)
            assert "were decided locally." in service.output or "was decided locally." in service.output


def test_an_engine_without_a_fallback_and_a_log_on_a_full_disk() -> None:
    with RedisServer("redis") as redis, Service(RULES, engine=redis.url, decision_log="/dev/full") as service:
        service.check(user="ann")

        def missing() -> str | None:
            degraded = service.send_request("GET", "/readyz").json["degraded"]
            log = "The decision log /dev/full cannot be written: No space left on device."
            return None if degraded == [log] else f"{degraded}"

        until(missing, 30)
        redis.stop()
        assert service.post("check", {"attributes": {"user": "ann"}}).status == 503
        engine, _ = service.send_request("GET", "/readyz").json["degraded"]
        assert engine.startswith("Calls could not be decided: ")


def test_a_rulebook_that_is_refused() -> None:
    with Service(RULES) as service:
        service.write('{"rules": [{"name": "api", "limit": "many"}]}')

        def accepted() -> str | None:
            degraded = service.send_request("GET", "/readyz").json["degraded"]
            return None if degraded and degraded[0].startswith("A new rulebook is refused") else f"{degraded}"

        until(accepted, 30)
        assert service.check(user="ann")["allowed"]
        service.write({"rules": []})
        until(lambda: None if service.send_request("GET", "/healthz").body == b"ok\n" else "still refused", 30)


def test_each_worker_answers_for_all() -> None:
    with (
        RedisServer("redis") as redis,
        Service(RULES, engine=f"{redis.url}?fallback=local", workers=2, decision_log="/dev/full") as service,
    ):
        log = "The decision log /dev/full cannot be written: No space left on device."
        with service.connection() as connection:  # one connection, so one worker: only that one writes its log
            connection.request("POST", "/v1/check", b'{"attributes": {"user": "ann"}}')
            assert connection.getresponse().read()

        def different() -> str | None:
            answers = [service.send_request("GET", "/readyz").json["degraded"] for _ in range(30)]
            return None if answers == [[log]] * 30 else f"{answers}"

        until(different, 30)
        with grpc.insecure_channel(service.grpc) as channel:
            assert check(channel, "decision_log") == (NOT_SERVING, [log])
