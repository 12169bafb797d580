"""Every Python snippet in the documentation runs, in order, page by page, against a real Redis. Every YAML one is
a rulebook, rules of one, or a table of expected outcomes for the first rulebook of its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.cli import main
from headgate.rules import load
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh-CN.md", *(ROOT / "docs").rglob("*.md")])

_block = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_yaml = re.compile(r"^```yaml\n(.*?)^```", re.M | re.S)
_link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page: Path, redis_server: RedisServer) -> None:
    names: dict[str, object] = {}
    for block in _block.finditer(page.read_text(encoding="utf-8")):
        line = page.read_text(encoding="utf-8")[: block.start(1)].count("\n")
        source = block[1].replace("redis://localhost:6379/0", redis_server.url)
        exec(compile("\n" * line + source, str(page), "exec"), names)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```yaml" in page.read_text("utf-8")], ids=lambda page: page.name
)
def test_rulebooks_are_rulebooks(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(_yaml.findall(page.read_text(encoding="utf-8"))):
        if text.startswith("- "):
            assert load.parse(f"rules:\n{text}").rules
        elif "\ncases:" in text:
            (tmp_path / "rules-test.yaml").write_text(text, encoding="utf-8")
            assert main(["rules", "test", str(tmp_path / "rules-test.yaml")]) == 0
        else:
            assert load.parse(text).rules
            if not number:
                (tmp_path / "rules.yaml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        link for link in _link.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()
    ]
    assert not broken


def test_there_are_snippets() -> None:
    assert sum(len(_block.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 20
