"""Every Python snippet in the documentation runs, in order, page by page, against a real Redis."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh-CN.md", *(ROOT / "docs").rglob("*.md")])

_block = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page: Path, redis_server: RedisServer) -> None:
    names: dict[str, object] = {}
    for block in _block.finditer(page.read_text(encoding="utf-8")):
        line = page.read_text(encoding="utf-8")[: block.start(1)].count("\n")
        source = block[1].replace("redis://localhost:6379/0", redis_server.url)
        exec(compile("\n" * line + source, str(page), "exec"), names)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        link for link in _link.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()
    ]
    assert not broken


def test_there_are_snippets() -> None:
    assert sum(len(_block.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 20
