from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into an empty folder, which is where the commands run; its name."""
    monkeypatch.chdir(tmp_path)

    def written(text: str, name: str = "rules.yaml") -> str:
        Path(name).write_text(dedent(text))
        return name

    return written
