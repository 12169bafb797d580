"""Holds that grpcio still has the defect for which hardened_grpc.py uses its private parts."""

import asyncio
import socket
from typing import Any

import grpc
import pytest

from tests.fuzz import http2_frame_builder

METHOD = "/test.Service/Echo"


async def _echo(request: bytes, context: object) -> bytes:
    return request


async def _answers(channel: grpc.aio.Channel) -> bool:
    call: Any = channel.unary_unary(METHOD, request_serializer=None, response_deserializer=None)
    try:
        return bool(await call(b"x", timeout=5) == b"x")
    except grpc.aio.AioRpcError:
        return False


def _send_invalid_method(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        frames = http2_frame_builder.request_frames(b"/\xff", b"\0\0\0\0\0", kind=b"application/grpc")
        connection.sendall(b"".join(frames))
        connection.settimeout(5)
        connection.recv(100)


@pytest.mark.servers
async def test_an_invalid_method_name_still_ends_a_plain_server_of_grpcio() -> None:
    """If this fails, grpcio has mended it: use grpc.aio.server in hardened_grpc.py, and delete its own loop."""
    server = grpc.aio.server()
    echo: Any = grpc.unary_unary_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Echo": echo}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert await _answers(channel)
        await asyncio.to_thread(_send_invalid_method, port)
        for _ in range(20):  # it ends when it comes to that call
            if not await _answers(channel):
                break
            await asyncio.sleep(0.5)
        else:
            pytest.fail("The server still answers.")
    await server.stop(None)
