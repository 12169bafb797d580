"""Two real Envoys that decide by themselves, under one limit that the service divides."""

import asyncio

import httpx

from tests.servers import Backend, Envoy, RedisServer
from tests.servers.envoy import Json
from tests.service.documented import cluster, filter_of
from tests.service.running import Service

SHORTEST = 9 + 5 + len("name") + len("all") + 6  # bytes of a message: HTTP/2's head, gRPC's, and a bucket


def told(envoy: Envoy) -> tuple[int, int]:
    """The streams that it began, and the bytes that went to and fro."""
    cluster = "cluster.headgate.upstream_"
    stats = envoy.stats(cluster)
    return stats[f"{cluster}rq_total"], stats[f"{cluster}cx_tx_bytes_total"] + stats[f"{cluster}cx_rx_bytes_total"]


def quota_filter() -> Json:
    """As the how-to has it; but nothing passes that was not assigned, so that all can be counted."""
    made = filter_of("rate_limit_quota")
    action = made["typed_config"]["bucket_matchers"]["on_no_match"]["action"]
    nothing = {"fallback_rate_limit": {"blanket_rule": "DENY_ALL"}}
    action["typed_config"] |= {"no_assignment_behavior": nothing}
    return made


async def test_two_envoys_share_one_budget() -> None:
    """100/s and 20 at once, asked for about 600/s by two Envoys for twelve seconds."""
    book = {"rules": [{"name": "all", "when": {"domain": "edge"}, "limit": "100/s burst 20"}]}
    with RedisServer() as server, Service(book, engine=server.url) as service, Backend() as backend:
        clusters = [cluster(service.grpc)]
        filters = [quota_filter()]
        with (
            Envoy(filters, backend, clusters=clusters) as one,
            Envoy(filters, backend, clusters=clusters) as other,
        ):
            async with httpx.AsyncClient(timeout=20) as client:
                loop = asyncio.get_running_loop()
                began = loop.time()
                passed = {one.url: 0, other.url: 0}
                late = {one.url: 0, other.url: 0}

                async def ask(url: str) -> None:
                    while loop.time() - began < 17:
                        answer = await client.get(url)
                        if answer.status_code == 200:
                            passed[url] += 1
                            late[url] += loop.time() - began > 12
                        await asyncio.sleep(0.005)

                await asyncio.gather(*(ask(url) for url in (one.url, other.url) for _ in range(2)))
                took = loop.time() - began
            streams, exchanged = zip(*map(told, (one, other)), strict=True)
    assert backend.total == sum(passed.values())
    # A bucket that is raised keeps its fraction of fill: one burst more for each of them, at most.
    assert sum(passed.values()) <= 100 * took + 3 * 20
    assert sum(late.values()) >= 0.7 * 100 * (took - 12), "the limit is used once both have reported"
    assert min(late.values()) > 0.2 * sum(late.values()), "and by both"
    assert streams == (1, 1), "one stream each"
    # However many were asked for: a message, either way, is no shorter than its bucket's name and two heads.
    assert max(exchanged) / SHORTEST < 5 * took, "fewer than five messages in a second"
