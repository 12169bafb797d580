"""The overview's processes: services, programs and gateways, each with its version."""

import re

import pytest

import headgate
from headgate import Counts, Limiter
from headgate.telemetry import counts_writer
from tests.dashboard.dashboard_harness import Site, Visitor
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.wait_until import until

RULES = {"rules": [{"name": "all", "limit": "30/day"}]}


def share_one_call(url: str, name: str) -> None:
    """Counts a call in a program of this name, and shares the count."""
    counts = Counts(shared_at=url)
    assert counts._writer is not None
    counts._writer._name = name
    with Limiter("5/s", name="api", observers=[counts]) as limiter:
        limiter.take("ann")
    counts.close()


async def node_rows(url: str) -> dict[str, list[str]]:
    """Returns the cells of each row by the name of its process, as an operator sees them."""
    async with Site(engine=url) as site:
        visitor = Visitor(site)
        await visitor.log_in()
        text = (await visitor.get("/dashboard/")).text
    [table] = re.findall(r'<table id="nodes">.*?<tbody>(.*?)</tbody>', text, re.S)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("</tr>") if row]
    return {cells[0]: [re.sub("<[^>]*>", "", cell) for cell in cells[1:]] for cells in rows}


async def test_programs_show_their_versions(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    share_one_call(redis_server.url, "shop:1")
    monkeypatch.setattr(counts_writer, "installed_version", lambda: "0.0.9")
    share_one_call(redis_server.url, "worker:2")
    monkeypatch.undo()
    rows = await node_rows(redis_server.url)
    assert rows["shop:1"][:2] == ["program", headgate.__version__]
    assert rows["worker:2"][:2] == ["program", "0.0.9"]
    assert [cells[1] for cells in rows.values() if cells[0] == "service"] == [headgate.__version__]


async def test_a_gateway_shows_the_version_of_its_library(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url) as gateway:
        gateway.get("/")
        gateway.get("/")
        until(lambda: None if redis_server.call("EXISTS", "hg2:{counts}:writers") else "nothing is counted", 30)
        found = await node_rows(redis_server.url)
    [cells] = [cells for name, cells in found.items() if name.startswith("nginx@")]
    assert cells[:2] == ["nginx", headgate.__version__]
