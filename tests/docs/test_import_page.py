"""The page on imports shows what `headgate rules import` prints: the rulebook, and the notes."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from headgate.cli import main
from headgate.rules.imports import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "import.md").read_text("utf-8")

_shown = re.compile(
    r"^`(\S+)`:\n\n((?: {4}.*\n)+)\nbecomes\n\n```yaml\n([^`]*)```\n\nwith these notes:\n\n((?: {4}.*\n)+)", re.M
)
SHOWN = _shown.findall(PAGE)


@pytest.mark.parametrize(("name", "text", "book", "notes"), SHOWN, ids=[name for name, *_ in SHOWN])
def test_the_shown_output_is_printed(
    name: str,
    text: str,
    book: str,
    notes: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(dedent(text), encoding="utf-8")
    assert main(["rules", "import", name]) == 0
    printed = capsys.readouterr()
    assert printed.out == book
    assert printed.err == dedent(notes)


def test_every_kind_is_shown() -> None:
    assert len(SHOWN) == len(KINDS)
    assert all(f"| `{kind}` |" in PAGE for kind in KINDS)
