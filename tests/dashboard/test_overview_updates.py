"""Answers to the overview's script: rows of rules that are not in its table, and the processes."""

import json
import re

from tests.dashboard.dashboard_harness import Site, Visitor

MANY = {
    "rules": [
        {"name": f"rule-{number}", "when": {"path": f"/{number}"}, "limit": "1/hour"} for number in range(300)
    ]
}


def names(rows: str) -> list[str]:
    return re.findall(r'<tr data-rule="([^"]+)"', rows)


async def test_rules_beyond_the_first_hundred_can_be_found_and_come_when_they_refuse() -> None:
    async with Site(MANY) as site:
        visitor = Visitor(site)
        await visitor.log_in()
        for _ in range(3):
            await site.limiter.check({"path": "/299"})
        fetched = json.loads((await visitor.get("/dashboard/overview/rules")).text)
        assert (names(fetched["rows"])[0], fetched["partial"]) == ("rule-299", True)
        page = await visitor.get("/dashboard/")
        assert len(names(page.text)) == 100
        assert '"partial":true' in page.text
        fetched = json.loads((await visitor.get("/dashboard/overview/rules?find=RULE-29")).text)
        assert sorted(names(fetched["rows"])) == ["rule-29", *(f"rule-29{number}" for number in range(10))]
        assert not fetched["partial"]


async def test_the_rules_of_a_newer_rulebook_come(site: Site, operator: Visitor) -> None:
    page = await operator.get("/dashboard/rules")
    text = 'rules: [{name: new, limit: 1/s}, {name: "other", limit: 2/s}]'
    page = await operator.send_form(page, "/dashboard/rules/publish", text=text, base="1", format="yaml", note="n")
    assert page.status == 200, page.words
    fetched = json.loads((await operator.get("/dashboard/overview/rules")).text)
    assert (sorted(names(fetched["rows"])), fetched["title"], fetched["version"]) == (
        ["new", "other"],
        "2 rules",
        2,
    )
    page = await operator.get("/dashboard/rules/version?number=2")
    assert re.search(r"new added limit 1/s", page.words)
    assert "all removed" in page.words
    audit = await operator.get("/dashboard/audit")
    assert '<a href="/dashboard/rules/version?number=2">What it changed</a>' in audit.text


async def test_the_processes_are_fetched_anew(operator: Visitor) -> None:
    rows = json.loads((await operator.get("/dashboard/overview/nodes")).text)["rows"]
    assert "works" in rows


async def test_a_stranger_gets_neither(stranger: Visitor) -> None:
    for path in ("overview/rules", "overview/nodes", "key/facts?rule=buy&key=user%3Dbob"):
        assert (await stranger.get(f"/dashboard/{path}", **{"x-requested-with": "page"})).status == 401


async def test_the_facts_of_a_key_are_fetched_anew(site: Site, operator: Visitor) -> None:
    path = "/dashboard/key/facts?rule=buy&key=user%3Dbob"
    assert "passes" in json.loads((await operator.get(path)).text)["html"]
    await site.buy("bob", 5)
    facts = json.loads((await operator.get(path)).text)["html"]
    assert "is refused" in facts
    assert "5 calls, 3 refused" in facts
