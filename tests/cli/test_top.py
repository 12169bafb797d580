"""headgate top in a real terminal (tmux), on the counts of a real Redis."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Counts, Limiter
from tests.servers import RedisServer
from tests.servers.server_programs import command
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers


class TmuxTerminal:
    """A terminal of 80 columns and 24 lines in a tmux of its own, which runs a command."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._tmux = [str(command("tmux", "tmux")), "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._call("new-session", "-d", "-x", "80", "-y", "24", "-s", "top", *words)

    def _call(self, *words: str) -> str:
        ran = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=False)
        return ran.stdout

    @property
    def lines(self) -> list[str]:
        return self._call("capture-pane", "-p", "-t", "top").splitlines()

    def press(self, *keys: str) -> None:
        self._call("send-keys", "-t", "top", *keys)

    def until_shown(self, text: str, *, gone: bool = False) -> None:
        def missing() -> str | None:
            lines = self.lines
            is_shown = any(text in line for line in lines)
            return (
                None
                if is_shown is not gone
                else "\n".join([f"{text!r} is{' ' if gone else ' not '}shown:", *lines])
            )

        until(missing, 60)

    @property
    def ended(self) -> bool:
        return self._call("list-sessions") == ""

    def close(self) -> None:
        self._call("kill-server")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def _count(url: str) -> Counts:
    """Counts some calls and refusals, and shares them."""
    counts = Counts(shared_at=url)
    login = Limiter("2/hour", url, name="login", observers=[counts])
    search = Limiter("1000/s", url, name="search", observers=[counts])
    for _ in range(9):
        login.take("mallory")
        search.take("ann")
    return counts


def _top(url: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "headgate", "top", "--engine", url, *options]


def test_a_session(server: RedisServer, tmp_path: Path) -> None:
    terminal = TmuxTerminal(tmp_path, *_top(server.url))
    try:
        terminal.until_shown("Nothing was counted")
        counts = _count(server.url)
        terminal.until_shown("login")
        terminal.until_shown("mallory")
        terminal.press("/", "sear", "Enter")
        terminal.until_shown("only 'sear'")
        terminal.until_shown("mallory", gone=True)
        terminal.press("p")
        terminal.until_shown("PAUSED")
        terminal.press("p")
        terminal.until_shown("PAUSED", gone=True)
        server.stop()
        terminal.until_shown("connection failed")
        terminal.press("q")
        until(lambda: None if terminal.ended else "it still runs", 30)
        counts.close()
    finally:
        terminal.close()


def test_one_screen_for_a_pipe(server: RedisServer) -> None:
    def missing() -> str | None:
        _count(server.url).close()  # again at each look: what was counted 12 seconds ago is shown no more
        ran = subprocess.run(_top(server.url, "--json"), capture_output=True, text=True, check=True)
        document = json.loads(ran.stdout)
        refused = {each["rule"]: each["refused"] > 0 for each in document["rules"]}
        return None if refused == {"login": True, "search": False} else str(document)

    until(missing, 60)
    ran = subprocess.run(_top(server.url, "--once", "--mask"), capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("headgate top ")
    assert "mallory" not in ran.stdout
    assert "\x1b" not in ran.stdout


def test_counts_in_memory_end_with_their_process() -> None:
    ran = subprocess.run(_top("memory://"), capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "memory://" in ran.stderr


def test_keys_that_a_shadow_rule_would_refuse_are_listed(server: RedisServer) -> None:
    rule = {"name": "search", "key": "user", "missing": "skip", "limit": "2/hour", "mode": "shadow"}

    def missing() -> str | None:
        with Limiter.from_rules({"rules": [rule]}, observers=[counts := Counts(shared_at=server.url)]) as limiter:
            for _ in range(9):
                limiter.check({"user": "mallory"})
        counts.close()
        ran = subprocess.run(_top(server.url, "--json"), capture_output=True, text=True, check=True)
        [*keys] = json.loads(ran.stdout)["keys"]
        rows = [(key["key"], key["refused"], key["shadow"] > 0) for key in keys]
        return None if rows == [("user=mallory", 0, True)] else ran.stdout

    until(missing, 60)
