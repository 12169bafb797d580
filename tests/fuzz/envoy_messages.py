"""Draws messages for Envoy's services: changed valid ones, random bytes, and wrong gRPC framing.

Most go through grpc's own client, so that the status is read by who knows how. Framing that this client would
never send goes over frames of our own; there a status is looked for in the trailers, which grpc spells out.
"""

import asyncio
import re
from contextlib import suppress
from random import Random
from typing import Any

import grpc
from envoy.service.rate_limit_quota.v3 import rlqs_pb2  # type: ignore[import-untyped]
from envoy.service.ratelimit.v3 import rls_pb2  # type: ignore[import-untyped]

from headgate.service.envoy import rlqs, rls
from tests.fuzz import http2_frame_builder
from tests.fuzz.connections import NoReply, exchange
from tests.fuzz.mutate import TEXTS, mutate_bytes
from tests.fuzz.service_under_attack import SECONDS
from tests.service.service_harness import Service

FINE = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
_status = re.compile(rb"grpc-status(?:\x01(\d)|\x02(\d\d))")
# As above, and UNIMPLEMENTED; INTERNAL and UNAVAILABLE are grpc's own words for wrong framing and wrong HTTP/2.
_FINE_FRAMED = {0, 3, 8, 12, 13, 14}
_WRITING = "Internal error from Core"  # grpc's client, when it writes to a stream that has ended
_KEYS = ["user", "remote_address", "path", ":path", "plan", "generic_key", "authority", "tokens", "host", "method"]
_HITS = [0, 1, 3, 2**32 - 1, 2**53, 2**53 + 1, 2**64 - 1]


_TEXTS = [
    text.encode("utf-8", "replace").decode()
    for text in (*TEXTS, "ann", "/held/1", "/slow", "/closed", "free", "5", "7", "8", "9")
]


def _text(rng: Random) -> str:
    return rng.choice(_TEXTS)


class RateLimitMessages:
    """RLS."""

    def __init__(self, service: Service) -> None:
        self._address, self._port = service.grpc, int(service.grpc.rpartition(":")[2])

    async def open(self) -> None:
        alone = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(self._address, options=alone)
        self._should_rate_limit: Any = self._channel.unary_unary(rls.PATH)

    async def close(self) -> None:
        await self._channel.close()

    def make(self, rng: Random) -> Any:
        """A message, or the pieces of a connection."""
        request = self._valid(rng)
        match rng.randrange(10):
            case 0:
                return rng.randbytes(rng.choice((0, 1, 20, 70_000)))
            case 1:
                return (request * rng.choice((2, 300)))[:70_000]
            case 2 | 3:
                return _framed(rng, rls.PATH.encode(), [request])
            case 4 | 5:
                return request
        return mutate_bytes(rng, request)

    def _valid(self, rng: Random) -> bytes:
        request = rls_pb2.RateLimitRequest(domain=rng.choice(("edge", "edge", _text(rng))))
        room = 70_000  # a little more than is read
        for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 2, 5, 5, 101))):
            one = request.descriptors.add()
            for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 3, 101)) if room > 0 else 1):
                key, value = rng.choice(_KEYS) if rng.random() < 0.8 else _text(rng), _text(rng)
                one.entries.add(key=key, value=value)
                room -= len(key) + len(value)
                if room < 0:
                    break
            if rng.random() < 0.3:
                one.limit.requests_per_unit, one.limit.unit = rng.choice((0, 1, 2**32 - 1)), rng.randint(0, 9)
            if rng.random() < 0.3:
                one.hits_addend.value = rng.choice(_HITS)
        if rng.random() < 0.3:
            request.hits_addend = rng.choice(_HITS[:4])
        data: bytes = request.SerializeToString()
        return data

    async def send(self, made: Any) -> str | None:
        if isinstance(made, list):
            return await _sent(self._port, made)
        try:
            answer = await self._should_rate_limit(made, timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            return None if error.code() in FINE else f"{error.code()}: {error.details()}"
        rls_pb2.RateLimitResponse.FromString(answer)
        return None


class QuotaMessages(RateLimitMessages):
    """RLQS: a few reports, and then something else."""

    async def open(self) -> None:
        await super().open()
        self._open: Any = self._channel.stream_stream(rlqs.PATH)

    def make(self, rng: Random) -> Any:
        """Messages, or the pieces of a connection."""
        reports = [self._report(rng) for _ in range(rng.randint(1, 4))]
        match rng.randrange(6):
            case 0:
                return _framed(rng, rlqs.PATH.encode(), reports)
            case 1:
                reports.append(rng.randbytes(rng.choice((1, 30, 70_000))))
            case 2 | 3:
                reports[-1] = mutate_bytes(rng, reports[-1])
        return (bytes([rng.randrange(5)]), *reports)  # by which name it goes, and what it sends

    def _report(self, rng: Random) -> bytes:
        report = rlqs_pb2.RateLimitQuotaUsageReports(domain=rng.choice(("edge", "edge", "edge", "", _text(rng))))
        for _ in range(rng.choice((0, 1, 2, 10))):
            usage = report.bucket_quota_usages.add()
            for _ in range(rng.choice((0, 1, 1, 2, 3))):
                usage.bucket_id.bucket[rng.choice((*_KEYS, _text(rng)))] = _text(rng)
            usage.num_requests_allowed, usage.num_requests_denied = rng.choice(_HITS), rng.choice(_HITS)
            usage.time_elapsed.seconds = rng.choice((0, 1, -1, 2**62))
        data: bytes = report.SerializeToString()
        return data

    async def send(self, made: Any) -> str | None:
        if isinstance(made, list):
            return await _sent(self._port, made)
        name, *reports = made
        metadata = ((rlqs.HOLDER_HEADER, "ab"[name[0]]),) if name[0] < 2 else ()
        call = self._open(timeout=SECONDS, metadata=metadata)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it was ended before all was sent
            for report in reports:
                await call.write(report)
            await call.done_writing()
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                rlqs_pb2.RateLimitQuotaResponse.FromString(answer)
        except grpc.aio.AioRpcError:
            pass
        if (code := await call.code()) in FINE or await call.details() == _WRITING:
            return None
        return f"{code}: {await call.details()}"


def _framed(rng: Random, method: bytes, messages: list[bytes]) -> list[bytes]:
    """Messages in gRPC's framing with a flag or a length that is wrong, or in HTTP/2 that is."""
    body = b""
    for message in messages:
        flag, length = 0, len(message)
        match rng.randrange(5):
            case 0:
                flag = rng.choice((1, 2, 255))
            case 1:
                length = rng.choice((0, length + 1, length // 2, 2**32 - 1, 2**31))
        body += bytes((flag,)) + length.to_bytes(4, "big") + message
    kind = rng.choice((b"application/grpc",) * 5 + (b"application/json", b"application/grpc+x", b""))
    path = method if rng.random() < 0.9 else rng.choice((b"/", b"", b"/x/y", b"/" + b"z" * 9000, method + b"\0"))
    whole = http2_frame_builder.request_frames(path, body[:16_000], kind=kind)
    return whole if rng.random() < 0.5 else http2_frame_builder.break_frames(rng, whole)


async def _sent(port: int, made: list[bytes]) -> str | None:
    try:
        back = await exchange("127.0.0.1", port, made)
    except NoReply as error:
        return str(error)
    for match in _status.finditer(back):
        if (status := int(match[1] or match[2])) not in _FINE_FRAMED:
            return f"grpc-status {status}: {back[-400:]!r}"
    return None
