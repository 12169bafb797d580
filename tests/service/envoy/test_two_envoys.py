"""Two real Envoys that decide by themselves, under one limit that the service divides."""

import asyncio
import time
from itertools import accumulate

import httpx

from tests.servers import Backend, Envoy, RedisServer
from tests.servers.http_backend import BackendRequest, BackendResponse
from tests.service.documented_configs import cluster, filter_of
from tests.service.service_harness import Service

SHORTEST = 9 + 5 + len("name") + len("all") + 6  # bytes of a message: HTTP/2's head, gRPC's, and a bucket


def exchanged_reports(envoy: Envoy) -> tuple[int, int]:
    """The streams that it began, and the bytes that went to and fro."""
    cluster = "cluster.headgate.upstream_"
    stats = envoy.stats(cluster)
    return stats[f"{cluster}rq_total"], stats[f"{cluster}cx_tx_bytes_total"] + stats[f"{cluster}cx_rx_bytes_total"]


async def test_two_envoys_share_one_budget() -> None:
    """100/s and 20 at once, asked for about 600/s by two Envoys for twelve seconds."""
    book = {"rules": [{"name": "all", "when": {"domain": "edge"}, "limit": "100/s burst 20"}]}
    with RedisServer() as server, Service(book, engine=server.url) as service, Backend() as backend:
        clusters = [cluster(service.grpc)]
        filters = [filter_of("rate_limit_quota")]
        with (
            Envoy(filters, backend, clusters=clusters) as one,
            Envoy(filters, backend, clusters=clusters) as other,
        ):
            async with httpx.AsyncClient(timeout=20) as client:
                loop = asyncio.get_running_loop()
                began = loop.time()
                passed = {one.url: 0, other.url: 0}
                late = {one.url: 0, other.url: 0}

                async def send_request(url: str) -> None:
                    while loop.time() - began < 17:
                        answer = await client.get(url)
                        if answer.status_code == 200:
                            passed[url] += 1
                            late[url] += loop.time() - began > 12
                        await asyncio.sleep(0.005)

                await asyncio.gather(*(send_request(url) for url in (one.url, other.url) for _ in range(2)))
                took = loop.time() - began
            streams, exchanged = zip(*map(exchanged_reports, (one, other)), strict=True)
    assert backend.total == sum(passed.values())
    # A bucket that is raised keeps its fraction of fill: one burst more for each of them, at most.
    assert sum(passed.values()) <= 100 * took + 3 * 20
    assert sum(late.values()) >= 0.4 * 100 * (took - 12), "the limit is used once both have reported"
    assert min(late.values()) > 0.2 * sum(late.values()), "and by both"
    assert streams == (1, 1), "one stream each"
    # However many were asked for: a message, either way, is no shorter than its bucket's name and two heads.
    assert max(exchanged) / SHORTEST < 5 * took, "fewer than five messages in a second"


RATE, BURST = 100, 20
CLIENTS = 2  # of each Envoy: so many requests may be admitted early and counted late
# A bucket starts full where an Envoy gets its first grant, and one that is raised keeps its fraction of fill. That
# may add a burst now and then; 2 requests were measured.
SLACK = 2 * BURST + 2 * CLIENTS


class CountingUpstream(Backend):
    """Notes when each request was admitted."""

    def __init__(self) -> None:
        self.admitted: list[float] = []
        super().__init__(self._note)

    def _note(self, _: BackendRequest) -> BackendResponse:
        self.admitted.append(time.monotonic())
        return BackendResponse()

    @property
    def excess(self) -> float:
        """By how many requests the worst span of all exceeded RATE x its length."""
        above = [number - RATE * at for number, at in enumerate(self.admitted)]
        lowest = accumulate(above, min)
        return max(1 + here - low for here, low in zip(above, lowest, strict=True))

    def between(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for at in self.admitted)


async def load(envoy: Envoy) -> None:
    """More than the limit, until it is cancelled. Requests to an Envoy that is gone fail."""
    async with httpx.AsyncClient(timeout=20) as client:

        async def send_request() -> None:
            while True:
                try:
                    await client.get(envoy.url)
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
                await asyncio.sleep(0.005)

        await asyncio.gather(*(send_request() for _ in range(CLIENTS)))


async def test_envoys_that_join_and_leave_never_admit_more_than_the_limit() -> None:
    """The sum law, with the filter of the documentation, by what an upstream sees in every span of time."""
    book = {"rules": [{"name": "all", "when": {"domain": "edge"}, "limit": f"{RATE}/s burst {BURST}"}]}
    upstream = CountingUpstream()
    with RedisServer() as server, Service(book, engine=server.url) as service, upstream:
        filters, clusters = [filter_of("rate_limit_quota")], [cluster(service.grpc)]
        one = Envoy(filters, upstream, clusters=clusters)
        other = Envoy(filters, upstream, clusters=clusters)
        loads: dict[Envoy, asyncio.Task[None]] = {}

        async def join(envoy: Envoy) -> None:
            await asyncio.to_thread(envoy.start)
            loads[envoy] = asyncio.create_task(load(envoy))

        async def leave(envoy: Envoy) -> None:
            loads.pop(envoy).cancel()
            await asyncio.to_thread(envoy.kill)

        try:
            await join(one)
            await asyncio.sleep(7)  # it has reported, and uses the whole limit
            await join(other)
            await asyncio.sleep(18)  # it waits for its first grant for up to 15 s
            shared = time.monotonic()
            await asyncio.sleep(3)
            await leave(one)
            await asyncio.sleep(6)
            await join(one)
            await asyncio.sleep(16)
            await leave(other)
            ended = time.monotonic()
        finally:
            for task in loads.values():
                task.cancel()
            one.kill()
            other.kill()
    assert upstream.excess <= BURST + SLACK
    assert upstream.between(shared, shared + 3) > 0.25 * RATE * 3, "both use the limit, once both have a grant"
    assert upstream.between(ended - 3, ended) > 0.25 * RATE * 3, "so do those of the second turn"
