import json
from typing import Any

import pytest

from headgate.cli import main
from headgate.cli.flash_sale import SECONDS, FlashSale


@pytest.fixture(autouse=True)
def no_engine_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_ENGINE", raising=False)


class Prompt:
    """Somebody at a prompt: types words, reads what comes."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        """Run a command; its exit code."""
        code = main(words)
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *words: str, code: int = 0) -> Any:
        """The document that a command answers with."""
        assert self(*words, "--json") == code, self.err
        return json.loads(self.out)

    def failure(self, *words: str, code: int = 2) -> str:
        """The one sentence that a command fails with."""
        assert self(*words) == code
        assert self.out == ""
        assert self.err.startswith("headgate: ")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("headgate: ").rstrip("\n")


@pytest.fixture
def prompt(capsys: pytest.CaptureFixture[str]) -> Prompt:
    return Prompt(capsys)


@pytest.fixture(scope="session")
def played() -> FlashSale:
    """The whole sale; look, but do not play on."""
    sale = FlashSale()
    sale.play_until(SECONDS)
    return sale
