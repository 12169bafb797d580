"""The server on real sockets: other people's clients, slow readers, TLS, full, and the end."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import grpc
import pytest

from headgate.service.grpc_server import server as grpc_server
from headgate.service.grpc_server.methods import CallFailed, Metadata, Method, StatusCode
from headgate.service.settings import Address
from headgate.service.supervisor import open_listener
from tests.fuzz.http2_frame_builder import GOAWAY, PING, PREFACE, SETTINGS, WINDOW, frame
from tests.servers.tls import certificates
from tests.service.envoy.envoy_harness import serving_grpc
from tests.service.grpc_server.http2_peer import ACK, head, message

LONG = 30


class Methods:
    """An echo, a call that waits until it is let go, and a stream."""

    def __init__(self) -> None:
        self.entered, self.let_go = asyncio.Event(), asyncio.Event()
        self.cancelled = asyncio.Event()

    async def echo(self, data: bytes) -> bytes:
        if data == b"fail":
            raise CallFailed(StatusCode.PERMISSION_DENIED, "nobody may: 5 %, äöü")
        return data

    async def wait(self, data: bytes) -> bytes:
        self.entered.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return data

    async def chat(self, messages: AsyncIterator[bytes], metadata: Metadata) -> AsyncIterator[bytes]:
        async for each in messages:
            yield each + metadata.get("add", "").encode()

    def by_name(self) -> dict[str, Method]:
        return {
            "/test/Echo": Method(unary=self.echo),
            "/test/Wait": Method(unary=self.wait),
            "/test/Chat": Method(streaming=self.chat),
        }


def channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def unary(on: grpc.aio.Channel, path: str) -> Any:
    return on.unary_unary(path)


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE + frame(SETTINGS, 0, 0) + ACK)
    return reader, writer


async def closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection is closed."""
    got = b""
    async with asyncio.timeout(LONG):
        with suppress(ConnectionResetError):
            while part := await reader.read(65_536):
                got += part
    return got


async def test_a_client_of_grpcio() -> None:
    async with serving_grpc(Methods().by_name()) as address, channel(address) as client:
        for size in (0, 1, 5000, 70_000, 2_000_000):  # more than any window at first
            assert await unary(client, "/test/Echo")(b"x" * size, timeout=LONG) == b"x" * size
        answers = await asyncio.gather(*(unary(client, "/test/Echo")(b"%d" % n, timeout=LONG) for n in range(300)))
        assert answers == [b"%d" % n for n in range(300)]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await unary(client, "/test/Echo")(b"fail", timeout=LONG)
        assert (refused.value.code(), refused.value.details()) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "nobody may: 5 %, äöü",
        )
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await unary(client, "/test/Wait")(b"", timeout=0.3)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        call: Any = client.stream_stream("/test/Chat")(metadata=(("add", "!"),))
        for size in (3, 1_000_000):
            await call.write(b"x" * size)
            assert await call.read() == b"x" * size + b"!"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_compressed_messages_are_refused() -> None:
    async with serving_grpc(Methods().by_name()) as address, channel(address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await unary(client, "/test/Echo")(b"x" * 5000, timeout=LONG, compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await unary(client, "/test/Echo")(b"x", timeout=LONG) == b"x"


async def test_a_cancelled_call_is_cancelled_here() -> None:
    methods = Methods()
    async with serving_grpc(methods.by_name()) as address, channel(address) as client:
        call = unary(client, "/test/Wait")(b"", timeout=LONG)
        await asyncio.wait_for(methods.entered.wait(), LONG)
        call.cancel()
        await asyncio.wait_for(methods.cancelled.wait(), LONG)


async def test_running_calls_end_before_the_server_does() -> None:
    methods = Methods()
    async with AsyncExitStack() as stack:
        serving = serving_grpc(methods.by_name(), drain=LONG)
        address = await serving.__aenter__()
        client = await stack.enter_async_context(channel(address))
        call = asyncio.ensure_future(unary(client, "/test/Wait")(b"last", timeout=LONG))
        await asyncio.wait_for(methods.entered.wait(), LONG)
        stopping = asyncio.ensure_future(serving.__aexit__(None, None, None))
        await asyncio.sleep(0.1)
        assert not stopping.done()
        methods.let_go.set()
        assert await call == b"last"
        await asyncio.wait_for(stopping, LONG)


async def test_calls_that_take_too_long_are_cut_off() -> None:
    methods = Methods()
    serving = serving_grpc(methods.by_name())
    address = await serving.__aenter__()
    async with channel(address) as client:
        call = unary(client, "/test/Wait")(b"last", timeout=LONG)
        await asyncio.wait_for(methods.entered.wait(), LONG)
        await serving.__aexit__(None, None, None)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call
    assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.UNAVAILABLE, "This service stops.")
    assert methods.cancelled.is_set()


async def test_who_does_not_read_is_not_read_from_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "SLOW_READER_S", 0.5)
    methods, seen = Methods(), 0

    async def large(data: bytes) -> bytes:
        nonlocal seen
        seen += 1
        return bytes(50_000)

    async with serving_grpc({**methods.by_name(), "/test/Large": Method(unary=large)}) as address:
        reader, writer = await connect(address)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wide = b"\x7f\xff\0\0"
        writer.write(frame(WINDOW, 0, 0, wide) + frame(SETTINGS, 0, 0, b"\0\4" + wide))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        with suppress(ConnectionError):
            for number in range(1, 40_000, 2):
                writer.write(head(number, "/test/Large") + message(number))
                if number % 500 == 1:
                    await asyncio.sleep(0.001)
        async with channel(address) as client:
            assert await unary(client, "/test/Echo")(b"x", timeout=LONG) == b"x"
        await asyncio.sleep(1)
        assert seen < 5000
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        await closed(reader)
        writer.close()


async def test_tls_without_http_2_is_closed() -> None:
    ours = certificates()
    tls = {"tls_cert": ours.server, "tls_key": ours.server_key}
    async with serving_grpc(Methods().by_name(), **tls) as address:
        host, _, port = address.rpartition(":")
        for protocols in ([], ["http/1.1"], ["h2"]):
            context = ssl.create_default_context(cafile=ours.authority)
            if protocols:
                context.set_alpn_protocols(protocols)
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writer.write(PREFACE + frame(SETTINGS, 0, 0) + ACK + head(1, "/test/Echo") + message(1))
            if protocols == ["h2"]:
                async with asyncio.timeout(LONG):
                    await reader.readuntil(b"grpc-status\x010")
            else:
                assert await closed(reader) == b""
            writer.close()


async def test_when_it_is_full_the_idle_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "max_connections", lambda: 8)
    methods = Methods()
    async with serving_grpc(methods.by_name()) as address, channel(address) as client:
        call = asyncio.ensure_future(unary(client, "/test/Wait")(b"mine", timeout=2 * LONG))
        await asyncio.wait_for(methods.entered.wait(), LONG)
        idle = [await connect(address) for _ in range(20)]
        began = time.monotonic()
        async with channel(address) as other:
            assert await unary(other, "/test/Echo")(b"x", timeout=LONG) == b"x"
        assert time.monotonic() - began < LONG
        methods.let_go.set()
        assert await call == b"mine"
        for _, writer in idle:
            writer.close()


async def test_idle_connections_leave_when_half_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "max_connections", lambda: 8)
    monkeypatch.setattr(grpc_server, "IDLE_S", 0.5)
    async with serving_grpc(Methods().by_name()) as address, channel(address) as client:
        assert await unary(client, "/test/Echo")(b"x", timeout=LONG) == b"x"
        idle = [await connect(address) for _ in range(5)]
        reading = [asyncio.ensure_future(closed(reader)) for reader, _ in idle]
        done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        assert frame(GOAWAY, 0, 0, b"\0" * 8) in done.pop().result(), "it opened no stream, and made no error"
        for task, (_, writer) in zip(reading, idle, strict=True):
            task.cancel()
            writer.close()
        assert await unary(client, "/test/Echo")(b"x", timeout=LONG) == b"x"


async def test_pings_alone_keep_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "max_connections", lambda: 8)

    async def ping(writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(frame(PING, 0, 0, b"12345678"))
                await writer.drain()
                await asyncio.sleep(0.1)

    async with serving_grpc(Methods().by_name()) as address, asyncio.TaskGroup() as pinging:
        idle = [await connect(address) for _ in range(20)]
        tasks = [pinging.create_task(ping(writer)) for _, writer in idle]
        async with channel(address) as other:
            assert await unary(other, "/test/Echo")(b"x", timeout=LONG) == b"x"
        for task in tasks:
            task.cancel()
        for _, writer in idle:
            writer.close()


async def test_every_address_of_ipv6_is_every_address_of_ipv4_too() -> None:
    with open_listener(Address("::", 0), both_families=True) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=LONG).close()
