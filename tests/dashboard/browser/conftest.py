"""Fixtures: a browser, and a service with a shop's rulebook on a real Redis."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser

from headgate.cli import main
from tests.dashboard.browser.browser_harness import BrowserUser, chromium
from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.service.service_harness import Service

TOKEN = "the operators' token 0123456789"
VIEWER_TOKEN = "the viewers' token 0123456789"
BOOK = """\
rules:
  - name: buy
    when: {path: /buy}
    key: user
    missing: skip
    limit: 5/hour
    candidate: 3/hour
    overrides: true

  - name: browse
    when: {path: /browse}
    key: user
    missing: skip
    limit: 50/s
    mode: shadow

  - name: everybody
    key: address
    missing: skip
    limit: 2000/s
"""


class Shop(NamedTuple):
    """A service, its Redis, and the address of its dashboard."""

    service: Service
    redis: RedisServer
    admin: str
    rules: Path

    def publish(self, book: str) -> None:
        """Publishes a rulebook by the command line."""
        self.rules.write_text(book)
        assert main(["rules", "push", str(self.rules), "--engine", self.redis.url, "--author", "test"]) == 0

    def buy(self, user: str, times: int = 1) -> list[bool]:
        check = self.service.check
        return [check(path="/buy", method="POST", user=user, address="192.0.2.7")["allowed"] for _ in range(times)]


def start_service(redis: RedisServer, admin: str) -> Service:
    service = Service(engine=redis.url, grpc="off", admin=admin, admin_token=TOKEN, viewer_token=VIEWER_TOKEN)
    service.settings["rules"] = "pushed"
    return service


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def open_shop(folder: Path) -> Iterator[Shop]:
    rules = folder / "rules.yaml"
    rules.write_text(BOOK)
    with RedisServer() as redis:
        assert main(["rules", "push", str(rules), "--engine", redis.url, "--author", "test"]) == 0
        admin = f"127.0.0.1:{free_port()}"
        with start_service(redis, admin) as service:
            yield Shop(service, redis, admin, rules)


@pytest.fixture(scope="session")
def shared_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """For tests that look, and leave rules and keys of others alone: a service takes seconds to start."""
    with open_shop(tmp_path_factory.mktemp("shared")) as shop:
        yield shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with open_shop(tmp_path) as shop:
        yield shop


@pytest.fixture
def operator(browser: Browser, shop: Shop) -> Iterator[BrowserUser]:
    operator = BrowserUser(browser, shop.admin)
    operator.log_in(TOKEN)
    yield operator
    operator.close()
    assert operator.errors == []
