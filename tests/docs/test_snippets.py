"""Every Python snippet in the documentation runs, in order, page by page, against a real Redis. Every YAML one is
a rulebook, rules of one, a table of expected outcomes for the first rulebook of its page, or a case to simulate.

    limiter.peek("ann").remaining      # -> 3          is looked at: it must be so

Where a page asks a service at http://127.0.0.1:8080, one runs with the page's rules in JSON, or with the sample.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import pytest

from headgate.cli import main
from headgate.cli.simulation_case import read_case
from headgate.rules import load
from tests.servers import RedisServer
from tests.service.service_harness import Service

ROOT = Path(__file__).parents[2]
SHOWN_REDIS = "redis://localhost:6379/0"
SHOWN_SERVICE = "http://127.0.0.1:8080"
ON_TESTING = [
    ROOT / "docs" / page for page in ("how-to/testing.md", "reference/testing.md", "tutorial/first-limits.md")
]
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh-CN.md", *(ROOT / "docs").rglob("*.md")])

_block = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_yaml = re.compile(r"^```yaml\n(.*?)^```", re.M | re.S)
_looked_at = re.compile(r"^( *)(\S.*?) +# -> (.+)$", re.M)
LOOK = r"\1_same((\2), (\3))"
_link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(
    page: Path, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text(encoding="utf-8")
    if any('"rules.yaml"' in source for source in _block.findall(text)) and (rulebooks := _yaml.findall(text)):
        (tmp_path / "rules.yaml").write_text(rulebooks[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if any("import django" in source or "from django" in source for source in _block.findall(text)):
        import_module("tests.integrations.django_project.project")  # which configures Django, once for all tests
    if any('from_rules("pushed"' in source for source in _block.findall(text)):
        (tmp_path / "pushed.yaml").write_text(_yaml.findall(text)[0], encoding="utf-8")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert main(["rules", "push", "pushed.yaml", "--engine", redis_server.url]) == 0
    places = {SHOWN_REDIS: redis_server.url}
    with ExitStack() as stack:
        if any(SHOWN_SERVICE in source for source in _block.findall(text)):
            places[SHOWN_SERVICE] = stack.enter_context(Service(_rules(text))).url
        names: dict[str, object] = {"_same": _same, "__name__": "__main__"}
        for block in _block.finditer(text):
            source = _looked_at.sub(LOOK, block[1])
            for shown, real in places.items():
                source = source.replace(shown, real)
            line = text[: block.start(1)].count("\n")
            exec(compile("\n" * line + source, str(page), "exec"), names)


def _same(actual: object, expected: object) -> None:
    assert actual == expected


def _rules(text: str) -> str | None:
    """The page's rulebook in JSON, if it has one."""
    return next(iter(re.findall(r'^```json\n(\{"rules".*?)^```', text, re.M | re.S)), None)


def test_commented_results_are_compared() -> None:
    assert _looked_at.sub(LOOK, "  a, b    # -> (2, 3)\n") == "  _same((a, b), ((2, 3)))\n"
    with pytest.raises(AssertionError):
        _same(2, 3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_are_not_tests(page: Path) -> None:
    """Users write none of these names, except on the pages about testing."""
    source = "\n".join(_block.findall(page.read_text(encoding="utf-8")))
    words = r"__doc__|free_port|\bsubprocess\b|\btempfile\b|from tests"
    if page not in ON_TESTING:
        words += r"|\bassert\b"
    assert re.findall(words, source) == []


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
        elif "\nserver:" in text:
            (tmp_path / "case.yaml").write_text(text, encoding="utf-8")
            assert read_case(tmp_path / "case.yaml").limiters
        else:
            assert load.parse(text).rules
            if not number:
                (tmp_path / "rules.yaml").write_text(text, encoding="utf-8")


LINKED = sorted({*PAGES, *ROOT.glob("*.md"), ROOT / "nginx" / "README.md"})


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        link for link in _link.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()
    ]
    assert not broken


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_are_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    broken = [
        f"{link}#{anchor}"
        for link, anchor in links
        if anchor not in _anchors(page.parent / link if link else page)
    ]
    assert not broken


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_there_are_snippets() -> None:
    assert sum(len(_block.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 20
