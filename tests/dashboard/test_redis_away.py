"""Redis does not answer: pages come all the same, nothing is changed in silence, and no text is lost."""

import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import main
from headgate.engines.redis.errors import TimedOut
from headgate.errors import EngineUnavailable
from headgate.rules.distribution.published_versions import AsyncRulebookVersions
from tests.dashboard.dashboard_harness import Site, VisitedPage, Visitor, key_path
from tests.servers import RedisServer

BOB = key_path("buy", "user=bob")
TEXT = """\
rules:
  - name: buy
    key: user
    missing: skip
    limit: 2/hour
    mode: shadow
    overrides: true
"""
NEW = TEXT.replace("2/hour", "7/hour")
AWAY = "Redis does not answer. This page shows what this process knows"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    book = tmp_path / "rules.yaml"
    book.write_text(TEXT)
    with RedisServer() as redis:
        assert main(["rules", "push", str(book), "--engine", redis.url, "--author", "test"]) == 0
        yield redis
        redis.resume()


@pytest.fixture
async def site(redis: RedisServer) -> AsyncIterator[Site]:
    async with Site(rules="pushed", engine=redis.url) as site:
        yield site
        redis.resume()


@pytest.fixture
async def operator(site: Site) -> Visitor:
    visitor = Visitor(site)
    await visitor.log_in()
    return visitor


class SentRequests:
    """Counts the requests that pages send to Redis."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = 0
        engine: Any = site.site.admin.handlers._clients.engine
        sources: Any = site.site.dashboard._sources
        for owner, name in ((engine, "execute"), (engine, "execute_all"), (sources, "shared_counts")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Any) -> Any:
        def counted(*args: Any, **named: Any) -> Any:
            self.sent += 1
            return function(*args, **named)

        return counted


async def publish(operator: Visitor, text: str = NEW, base: str = "1") -> VisitedPage:
    page = await operator.get("/dashboard/audit")
    fields = {"form": page.form_token, "text": text, "format": "yaml", "base": base, "note": "more"}
    return await operator.post("/dashboard/rules/publish", fields)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/dashboard/", "buy"),
        ("/dashboard/rule?name=buy", "2/hour"),
        ("/dashboard/rule/keys?name=buy", ""),
        (BOB, "2/hour"),
        ("/dashboard/rules", "limit: 2/hour"),
        ("/dashboard/audit", "Redis"),
    ],
)
async def test_a_page_sends_one_request_and_shows_what_the_process_knows(
    redis: RedisServer, site: Site, operator: Visitor, path: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = SentRequests(site, monkeypatch)
    assert AWAY not in (await operator.get(path)).words
    assert requests.sent > 0
    redis.pause()
    requests.sent = 0
    page = await operator.get(path)
    assert (page.status, requests.sent) == (200, 1)
    assert words in page.words
    assert AWAY in page.words or "rule/keys" in path
    redis.resume()
    monkeypatch.setattr(site.site.dashboard._sources.availability, "_failed_at", float("-inf"))
    assert AWAY not in (await operator.get(path)).words


@pytest.mark.parametrize("action", ["override", "block", "exempt", "reset", "unset"])
async def test_a_change_is_refused_at_once(
    redis: RedisServer, site: Site, operator: Visitor, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = (await operator.get(BOB)).form_token
    redis.pause()
    requests = SentRequests(site, monkeypatch)
    fields = {"form": token, "rule": "buy", "key": "user=bob", "reason": "r", "limits": "9/hour"}
    page = await operator.post(f"/dashboard/key/{action}", fields)
    assert (page.status, requests.sent) == (503, 1)
    assert "Nothing was sent" in page.words


async def test_a_publication_is_refused_at_once_and_the_text_is_kept(
    redis: RedisServer, site: Site, operator: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    await operator.get("/dashboard/rules")
    token = (await operator.get("/dashboard/audit")).form_token
    redis.pause()
    fields = {"form": token, "text": NEW, "format": "yaml", "base": "1", "note": "more"}
    page = await operator.post("/dashboard/rules/publish", fields)
    assert page.status == 503
    assert "Nothing was published" in page.words
    assert "limit: 7/hour" in page.words
    assert 'name="base" value="1"' in page.text
    assert 'value="more"' in page.text
    assert "headgate_publication" not in operator.cookies
    assert "may have been made" not in caplog.text


async def test_a_publication_without_a_reply_is_found_on_the_next_view(
    site: Site, operator: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    push = AsyncRulebookVersions.push

    async def push_and_lose_the_reply(*args: Any, **named: Any) -> Any:
        await push(*args, **named)
        raise EngineUnavailable("Redis gave no reply.") from TimedOut("no reply in time")

    monkeypatch.setattr(AsyncRulebookVersions, "push", push_and_lose_the_reply)
    with caplog.at_level(logging.WARNING, "headgate.admin"):
        page = await publish(operator)
    assert page.status == 503
    assert "Whether it was published is unknown" in page.words
    assert "limit: 7/hour" in page.words
    assert "a change may have been made" in caplog.text
    monkeypatch.setattr(site.site.dashboard._sources.availability, "_failed_at", float("-inf"))
    for view in range(2):  # the second view says nothing any more
        page = await operator.get("/dashboard/rules")
        found = "Your publication that got no reply was made: it is version 2" in page.words
        assert "Version 2, by ann" in page.words
        assert found is (view == 0)
    audit = await operator.get("/dashboard/audit")
    assert len(re.findall("rules published", audit.words)) == 1
    assert "none: it was found later" in audit.words


async def test_a_publication_that_was_not_made_is_reported_so(
    site: Site, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_the_request(*args: Any, **named: Any) -> Any:
        raise EngineUnavailable("Redis gave no reply.") from TimedOut("no reply in time")

    with monkeypatch.context() as patched:
        patched.setattr(AsyncRulebookVersions, "push", lose_the_request)
        assert (await publish(operator)).status == 503
    monkeypatch.setattr(site.site.dashboard._sources.availability, "_failed_at", float("-inf"))
    page = await operator.get("/dashboard/rules")
    assert "has not been made. Version 1 is in force" in page.words
    assert (await publish(operator)).status == 303
    page = await operator.get("/dashboard/rules")
    assert "got no reply" not in page.words
    assert "Version 2, by ann" in page.words


async def test_a_rollback_of_an_old_page_is_refused(site: Site, operator: Visitor) -> None:
    await publish(operator)
    await publish(operator, TEXT.replace("2/hour", "9/hour"), "2")
    token = (await operator.get("/dashboard/rules")).form_token
    fields = {"form": token, "to": "1", "base": "2", "note": "back"}  # of a page that showed version 2
    page = await operator.post("/dashboard/rules/rollback", fields)
    assert (page.status, "is version 3" in page.words) == (409, True)
    assert (await operator.post("/dashboard/rules/rollback", fields | {"base": "3"})).status == 303
