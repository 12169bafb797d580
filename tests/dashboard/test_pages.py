"""Pages in two languages, and the live stream."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from headgate.service.dashboard import translation
from headgate.telemetry.counted_rule import CountedRule
from tests.dashboard.dashboard_harness import Site, Visitor, key_path

FOLDER = Path(translation.__file__).parent


def translated_texts() -> set[str]:
    """The texts that pages translate, as far as they are written where that is done."""
    texts = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "t":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    texts.add(str(first.value))
    return texts


def test_every_text_is_there_in_chinese() -> None:
    assert translated_texts() - set(translation.IN_CHINESE) == set()


@pytest.mark.parametrize(
    "path",
    [
        "/dashboard/",
        "/dashboard/rule?name=buy",
        key_path("buy", "user=bob"),
        "/dashboard/rules",
        "/dashboard/audit",
    ],
)
async def test_a_chinese_browser_gets_chinese(operator: Visitor, path: str) -> None:
    page = await operator.get(path, **{"accept-language": "zh-CN,zh;q=0.9"})
    assert '<html lang="zh"' in page.text
    assert "概览 规则 审计" in page.words


async def test_the_switch_stays(operator: Visitor) -> None:
    await operator.get("/dashboard/?lang=zh")
    assert "概览" in (await operator.get("/dashboard/audit")).words


async def test_the_stream_has_what_happens_after_it_was_opened(site: Site, operator: Visitor) -> None:
    page = await operator.get("/dashboard/")
    assert page.status == 200
    stream = site.site.dashboard._sources.live.stream()
    first = await anext(stream)
    assert b'"version":1' in first
    await site.buy("bob", 3)
    seen: dict[str, Any] = {}
    rows: dict[int, list[int]] = {}  # the calls may be of two seconds
    while sum(row[1] for row in rows.values()) < 3:
        seen = json.loads((await anext(stream)).removeprefix(b"data: "))
        rows |= {row[0]: row for row in seen.get("rows", {}).get("buy", [])}
    assert sum(row[3] for row in rows.values()) == 1
    assert max(rows) <= seen["now"]
    await site.site.end_streams()
    assert [message async for message in stream if message.startswith(b"nothing")] == []  # it ends


async def test_static_files_are_there_and_nothing_else(stranger: Visitor) -> None:
    for name in ("page.js", "dashboard.css", "icon.svg", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css"):
        page = await stranger.get(f"/dashboard/static/{name}")
        assert page.status == 200
    for name in ("../app.py", "vendor/../../app.py", "%2e%2e/app.py", "vendor/uPlot.LICENSE", "", "vendor"):
        assert (await stranger.get(f"/dashboard/static/{name}")).status == 404


async def test_each_of_a_thousand_rules_is_counted_by_its_name() -> None:
    rules = [
        {"name": f"rule-{number}", "when": {"path": f"/{number}"}, "limit": "5/hour"} for number in range(1000)
    ]
    async with Site({"rules": rules}) as site:
        for number in range(1000):
            await site.limiter.check({"path": f"/{number}"})
        visitor = Visitor(site)
        await visitor.log_in()
        page = await visitor.get("/dashboard/?all=1")
    assert page.text.count("<tr data-rule=") == 1000
    assert "*other*" not in page.text


async def test_an_update_reads_each_rule_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [{"name": f"rule-{number}", "when": {"path": f"/{number}"}, "limit": "5/hour"} for number in range(50)]
    filed: list[CountedRule] = []
    file_counts = CountedRule.file_counts
    async with Site({"rules": rules}) as site:
        for number in range(50):
            await site.limiter.check({"path": f"/{number}"})

        def note(rule: CountedRule, second: int) -> None:
            filed.append(rule)
            file_counts(rule, second)

        monkeypatch.setattr(CountedRule, "file_counts", note)
        rows = await site.site.dashboard._sources.rows()
    assert len(rows) == 50
    assert len(filed) <= 2 * 51  # a second may begin meanwhile
