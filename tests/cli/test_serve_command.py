"""headgate serve prints where it listens once it is ready. (Its responses: tests/service)"""

import json
from collections.abc import Callable

import pytest

from headgate.service import supervisor as service
from headgate.service.settings import Settings
from tests.cli.conftest import Prompt


@pytest.fixture(autouse=True)
def ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is served: the service says that it is ready, and ends."""

    def run(settings: Settings, ready: Callable[[], None]) -> int:
        ready()
        return 0

    monkeypatch.setattr(service, "run", run)


@pytest.mark.parametrize("words", [("--json",), ("--log", "json")])
def test_without_an_admin_address_there_is_no_token(prompt: Prompt, words: tuple[str, ...]) -> None:
    assert prompt("serve", "--grpc", "off", "--admin", "off", *words) == 0
    printed = json.loads(prompt.out.splitlines()[0])
    assert (printed["admin"], printed["admin_token"]) == (None, None)


def test_a_token_that_was_made_up_is_printed(prompt: Prompt) -> None:
    assert prompt("serve", "--grpc", "off", "--json") == 0
    assert len(json.loads(prompt.out)["admin_token"]) >= 24
    assert prompt("serve", "--grpc", "off", "--admin-token", "t0k3n-of-operators", "--json") == 0
    assert json.loads(prompt.out)["admin_token"] is None
