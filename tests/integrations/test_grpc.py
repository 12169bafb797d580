"""gRPC servers of threads and of grpc.aio: fields on every call, refusals with RetryInfo, slots, refunds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from headgate import ManualClock
from headgate.errors import InvalidRule, InvalidSetting
from headgate.integrations.grpc import (
    AsyncRateLimitInterceptor,
    RateLimitInterceptor,
    RpcCall,
    current_record,
    limit,
)
from tests.integrations.grpc_servers import (
    SERVICE,
    AsyncOrderHandlers,
    OrdersClient,
    SyncOrderHandlers,
    details,
    serve_async,
    serve_sync,
)
from tests.servers import RedisServer
from tests.servers.wait_until import until

STYLES = ["sync", "aio", "aio with functions"]


@contextmanager
def serve(style: str, *args: Any, **settings: Any) -> Iterator[OrdersClient]:
    if style == "sync":
        with serve_sync(RateLimitInterceptor(*args, **settings)) as client:
            yield client
    else:
        orders = AsyncOrderHandlers() if style == "aio" else SyncOrderHandlers()
        with serve_async(lambda: AsyncRateLimitInterceptor(*args, **settings), orders) as client:
            yield client


@pytest.mark.parametrize("style", STYLES)
def test_every_kind_of_call_is_limited_and_has_the_fields(style: str) -> None:
    with serve(style, limits=[limit("4/minute")], clock=ManualClock()) as client:
        assert client.every_kind() == [
            ("OK", {"ratelimit-policy": '"app";q=4;w=60', "ratelimit": f'"app";r={left};t={60 - 15 * left}'})
            for left in (1, 3, 0, 2)
        ]
        refused = client.every_kind()
        assert [code for code, _ in refused] == ["RESOURCE_EXHAUSTED"] * 4
        for _, trailing in refused:
            assert trailing.pop("grpc-status-details-bin")
            assert trailing == {
                "ratelimit-policy": '"app";q=4;w=60', "ratelimit": '"app";r=0;t=15', "retry-after": "15",
            }  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_a_refusal_has_retry_info(style: str) -> None:
    with serve(style, limits=[limit("7/minute", cost=7, name="seven")], clock=ManualClock()) as client:
        client.one()
        with pytest.raises(grpc.RpcError) as refused:
            client.One(StringValue(), timeout=30)
        retry, quota = details(refused.value)
        assert retry.retry_delay.ToMilliseconds() == 60_000
        assert [(each.subject, each.description) for each in quota.violations] == [
            ("seven", "Too many requests. Try again in 60 seconds.")
        ]
        error: Any = refused.value
        assert error.details() == "Too many requests. Try again in 60 seconds."


def test_the_wait_is_exact_below_a_second() -> None:
    with serve("sync", limits=[limit("8/s")], clock=ManualClock()) as client:
        assert [client.one()[0] for _ in range(8)] == ["OK"] * 8
        with pytest.raises(grpc.RpcError) as refused:
            client.One(StringValue(), timeout=30)
        assert details(refused.value)[0].retry_delay.ToNanoseconds() == 125_000_000


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("text", "code"),
    [("trailing", "OK"), ("initial", "OK"), ("missing", "NOT_FOUND"), ("abort", "INVALID_ARGUMENT"),
     ("fail", "UNKNOWN")],
)  # fmt: skip
def test_the_fields_stay_beside_those_of_the_handler(style: str, text: str, code: str) -> None:
    with serve(style, limits=[limit("4/minute")], clock=ManualClock()) as client:
        assert client.one(text)[0] == code
        trailing = client.one(text)[1]
        assert trailing["ratelimit"] == '"app";r=2;t=30'
        if text in ("trailing", "abort"):
            assert trailing["own"] == "1"


@pytest.mark.parametrize("style", STYLES)
def test_a_rulebook_sees_method_service_metadata_and_address(style: str) -> None:
    book = {
        "rules": [
            {"name": "one", "when": {"path": f"/{SERVICE}/One"}, "key": "header.x-tenant", "missing": "deny",
             "limit": "1/hour", "refuse": {"status": 403, "body": "No tenant has more."}},
            {"name": "gather", "when": {"path": "/{service}/Gather"}, "key": ["service", "address"],
             "missing": "deny", "limit": "1/hour"},
        ]
    }  # fmt: skip
    with serve(style, book) as client:
        assert [client.one(x_tenant=tenant)[0] for tenant in ("a", "b", "a")] == ["OK", "OK", "PERMISSION_DENIED"]
        with pytest.raises(grpc.RpcError, match="No tenant has more"):
            client.One(StringValue(), timeout=30)
        assert [client.every_kind()[2][0] for _ in range(2)] == ["OK", "RESOURCE_EXHAUSTED"]
        assert client.every_kind()[1] == ("OK", {}), "no rule applies"


@pytest.mark.parametrize("style", STYLES)
def test_functions_receive_the_call(style: str) -> None:
    seen: list[RpcCall] = []

    def user(call: RpcCall) -> str:
        seen.append(call)
        return dict(call.metadata)["x-user"]  # type: ignore[return-value]

    limits = [
        limit("2/hour", key="user", missing="deny", name="users"),
        limit("3/hour", key=lambda call: call.request.value, name="texts"),
        limit("9/hour", key=["param.service", "param.method"], name="methods"),
    ]
    with serve(style, limits=limits, user=user) as client:
        assert [client.one("x", x_user=user)[0] for user in ("ann", "ann", "bob", "bob", "cid")] == [
            "OK", "OK", "OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED",
        ]  # fmt: skip
        assert client.one("y", x_user="cid")[0] == "OK"
    assert (seen[0].method, seen[0].service) == (f"/{SERVICE}/One", SERVICE)


@pytest.mark.parametrize("style", STYLES)
def test_a_proxy_that_is_trusted_names_the_client(style: str) -> None:
    settings: dict[str, Any] = {"limits": [limit("1/hour")], "trusted_proxies": ["127.0.0.0/8"]}
    with serve(style, **settings) as client:
        addresses = ["192.0.2.1", "192.0.2.2", "10.0.0.9, 192.0.2.1", "192.0.2.1, 127.0.0.1"]
        codes = [client.one(x_forwarded_for=address)[0] for address in addresses]
        assert codes == ["OK", "OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
    with serve(style, limits=[limit("1/hour")]) as client:
        assert [client.one(x_forwarded_for=address)[0] for address in addresses[:2]] == [
            "OK",
            "RESOURCE_EXHAUSTED",
        ]


def test_clients_of_a_socket_file_count_together(tmp_path: Path) -> None:
    interceptor = RateLimitInterceptor(limits=[limit("1/hour")])
    with serve_sync(interceptor, address=f"unix:{tmp_path / 'socket'}") as client:
        assert [client.one()[0] for _ in range(2)] == ["OK", "RESOURCE_EXHAUSTED"]


@pytest.mark.parametrize("style", STYLES)
def test_refunds_and_settled_costs(style: str) -> None:
    clock = ManualClock()
    failures = limit("2/hour", refund="2xx", name="failures")
    with serve(style, limits=[failures], clock=clock) as client:
        assert [client.one()[0] for _ in range(4)] == ["OK"] * 4, "what succeeds is given back"
        assert [client.one("fail")[0] for _ in range(3)] == ["UNKNOWN", "UNKNOWN", "RESOURCE_EXHAUSTED"]
    missing = limit("2/hour", refund="404", name="missing")
    with serve(style, limits=[missing], clock=clock) as client:
        assert [client.one("missing")[0] for _ in range(3)] == ["NOT_FOUND"] * 3
        assert [client.one("abort")[0] for _ in range(3)] == ["INVALID_ARGUMENT"] * 2 + ["RESOURCE_EXHAUSTED"]
    by_code = limit("2/hour", refund=lambda code: code is grpc.StatusCode.OK, name="by-code")
    with serve(style, limits=[by_code], clock=clock) as client:
        assert [client.one()[0] for _ in range(4)] == ["OK"] * 4
    tokens = limit("10/hour", cost=1, name="tokens")
    with serve(style, limits=[tokens], clock=clock) as client:
        client.one("settle")
        assert client.one()[1]["ratelimit"].startswith('"tokens";r=2;')
    sent = limit("100/hour", cost_after=lambda record: record.bytes_sent, name="bytes")
    with serve(style, limits=[sent], clock=clock) as client:
        assert client.every_kind()[1][0] == "OK"  # 6 + 3 * 3 + 5 + 2 * 3
        assert client.one()[1]["ratelimit"].startswith(f'"bytes";r={100 - 26 - 1};')


def test_slots_are_held_for_the_length_of_a_call() -> None:
    orders = SyncOrderHandlers()
    with serve_sync(RateLimitInterceptor(limits=[limit("1 slots", key=None)]), orders) as client:
        waiting = client.One.future(StringValue(value="wait"), timeout=60)
        assert orders.entered.acquire(timeout=30)
        assert client.one()[0] == "RESOURCE_EXHAUSTED"
        waiting.cancel()
        assert client.one()[0] == "RESOURCE_EXHAUSTED", "the handler still works, though nobody waits for it"
        orders.leave.set()
        until(lambda: None if client.one()[0] == "OK" else "the slot is held", 30)


# Not of functions in grpc.aio: a thread that streams there waits for ever once its client has left, with our
# interceptor or without, and would outlast the test.
@pytest.mark.parametrize("style", ["sync", "aio"])
def test_the_slot_of_a_stream_is_free_when_the_client_leaves(style: str) -> None:
    with serve(style, limits=[limit("1 slots", key=None)]) as client:
        for _ in range(3):
            stream = client.Many(StringValue(value="endless"), timeout=60)
            assert [next(stream).value for _ in range(5)] == ["0", "1", "2", "more", "more"]
            assert client.one()[0] == "RESOURCE_EXHAUSTED"
            stream.cancel()
            until(lambda: None if client.one()[0] == "OK" else "the slot is held", 30)
        assert client.one("fail")[0] == "UNKNOWN"
        assert client.one()[0] == "OK"


def test_the_slot_of_a_coroutine_is_free_when_the_client_leaves() -> None:
    with serve("aio", limits=[limit("1 slots", key=None)]) as client:
        waiting = client.One.future(StringValue(value="wait"), timeout=60)
        until(lambda: None if client.one()[0] == "RESOURCE_EXHAUSTED" else "the slot is free", 30)
        waiting.cancel()
        until(lambda: None if client.one()[0] == "OK" else "the slot is held", 30)


@pytest.mark.parametrize("style", STYLES)
def test_exempt_methods_and_shadow_rules_pass(style: str) -> None:
    limits = [limit("1/hour"), limit("1/hour", mode="shadow", name="shadow")]
    with serve(style, limits=limits, exempt=[f"/{SERVICE}/One"]) as client:
        assert [client.one() for _ in range(3)] == [("OK", {})] * 3
        assert [client.every_kind()[2][0] for _ in range(2)][1] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("style", STYLES)
def test_servers_share_a_limit_through_redis(style: str, redis_server: RedisServer) -> None:
    settings: dict[str, Any] = {"engine": redis_server.url, "limits": [limit("3/hour; 100/day")]}
    with serve(style, **settings) as here, serve("sync", **settings) as there:
        codes = [client.one()[0] for client in (here, there, here, there, here)]
        assert codes == ["OK"] * 3 + ["RESOURCE_EXHAUSTED"] * 2


@pytest.mark.parametrize("style", STYLES)
def test_an_engine_that_is_down_is_unavailable(style: str) -> None:
    down = "redis://127.0.0.1:1"
    with serve(style, engine=down, limits=[limit("1/hour")]) as client:
        code, trailing = client.one()
        assert (code, trailing["retry-after"]) == ("UNAVAILABLE", "1")
        with pytest.raises(grpc.RpcError) as refused:
            client.One(StringValue(), timeout=30)
        assert details(refused.value)[0].retry_delay.seconds == 1
    with serve(style, engine=f"{down}?fallback=allow", limits=[limit("1/hour")]) as client:
        assert [client.one() for _ in range(3)] == [("OK", {})] * 3


def test_a_queue_delays_the_call() -> None:
    clock = ManualClock()
    with serve("sync", limits=[limit("1/s queue 2")], clock=clock) as client:
        start = clock.now_us()
        assert [client.one()[0] for _ in range(3)] == ["OK"] * 3
        assert clock.now_us() - start >= 2_000_000


def test_mistakes_are_found_at_start() -> None:
    with pytest.raises(InvalidRule, match=r"test_grpc\.py:\d+: .*nobody supplies the attribute user"):
        RateLimitInterceptor(limits=[limit("1/hour", key="user", missing="deny")])
    with pytest.raises(InvalidSetting, match="Did you mean trusted_proxies="):
        AsyncRateLimitInterceptor(trusted_proxys=["10.0.0.0/8"])  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="No call is being handled here"):
        current_record()


def test_the_interceptor_of_the_other_kind_of_server_is_an_error() -> None:
    """Of grpc.aio it would be a coroutine that a server of threads never runs, and its clients wait forever."""
    wrong: Any = AsyncRateLimitInterceptor(limits=[limit("4/minute")])
    with serve_sync(RateLimitInterceptor(), inner=[wrong]) as client:
        for call in (client.One, client.Many):
            with pytest.raises(grpc.RpcError, match="needs a RateLimitInterceptor"):
                list(call(StringValue(value=""), timeout=30))


class _Renaming(grpc.ServerInterceptor):
    """An interceptor inside of headgate's, which replaces the handler."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: handler.unary_unary(StringValue(value="fail"), context),
            handler.request_deserializer,
            handler.response_serializer,
        )


def test_other_interceptors_and_unknown_methods_work_beside_it() -> None:
    interceptor = RateLimitInterceptor(limits=[limit("4/minute")], clock=ManualClock())
    with serve_sync(interceptor, inner=[_Renaming()]) as client:
        assert client.one("")[0] == "UNKNOWN"
        assert client.one("")[1]["ratelimit"] == '"app";r=2;t=30'
        unknown: Any = client.channel.unary_unary(f"/{SERVICE}/Unknown")
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            unknown(b"", timeout=30)
