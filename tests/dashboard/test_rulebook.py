"""Editing the rulebook: validation, preview, publishing, conflicts, history and rollback."""

import json
from pathlib import Path
from typing import Any

from tests.dashboard.dashboard_harness import Site, VisitedPage, Visitor

OLD = "rules:\n  - name: buy\n    key: user\n    missing: skip\n    limit: 2/hour\n"
NEW = OLD.replace("2/hour", "7/hour")


async def publish(visitor: Visitor, text: str, base: int, note: str = "more") -> VisitedPage:
    page = await visitor.get("/dashboard/rules")
    fields = {"text": text, "format": "yaml", "base": str(base), "note": note}
    return await visitor.send_form(page, "/dashboard/rules/publish", **fields)


async def for_script(visitor: Visitor, path: str, text: str) -> dict[str, Any]:
    token = (await visitor.get("/dashboard/rules")).form_token
    fields = {"text": text, "format": "yaml", "form": token}
    answer = await visitor.post(path, fields, **{"x-requested-with": "page"})
    document: dict[str, Any] = json.loads(answer.text)
    return document


async def test_a_mistake_has_its_line_and_the_command_line_s_words(viewer: Visitor) -> None:
    checked = await for_script(viewer, "/dashboard/rules/check", NEW.replace("7/hour", "7/hous"))
    [problem] = checked["problems"]
    assert problem["line"] == 5
    assert "7/hous" in problem["problem"]
    assert "Did you mean" in problem["problem"]


async def test_what_it_changes_is_shown_by_meaning_and_by_line(operator: Visitor) -> None:
    await publish(operator, OLD, 1)
    checked = await for_script(operator, "/dashboard/rules/check", NEW)
    assert checked["problems"] == []
    assert "<del>2/hour</del> → <ins>7/hour</ins>" in str(checked["html"])
    assert "<ins>+    limit: 7/hour\n</ins>" in str(checked["html"])


async def test_a_publication_holds_from_the_next_call_and_is_rolled_back(site: Site, operator: Visitor) -> None:
    assert (await publish(operator, OLD, 1)).status == 200
    assert await site.buy("bob", 3) == [True, True, False]
    page = await publish(operator, NEW, 2, "a sale")
    assert "Version 3, by ann" in page.words
    assert await site.buy("bob") == [True]
    page = await operator.send_form(page, "/dashboard/rules/rollback", to="2", base="3", note="too much")
    assert "Version 4, by ann" in page.words
    assert "too much (version 2 again)" in page.words
    assert await site.buy("bob") == [False]
    audit = await operator.get("/dashboard/audit")
    assert "rules rolled back" in audit.words
    assert "too much" in audit.words
    shown = await operator.get("/dashboard/rules/version?number=3")
    assert "+ limit: 7/hour" in shown.words


async def test_two_operators_who_edit_at_once_lose_nothing(site: Site, operator: Visitor) -> None:
    other = Visitor(site, "192.0.2.8")
    await other.log_in(user="oleg")
    assert (await publish(operator, OLD, 1)).status == 200
    mine = OLD.replace("2/hour", "9/hour") + "  # mine\n"
    conflict = await publish(other, mine, 1)
    assert conflict.status == 409
    assert "version 2, by ann" in conflict.words
    assert "# mine" in conflict.words  # the text is kept
    assert "+ limit: 2/hour" in conflict.words  # and what the other one changed is shown
    assert site.limiter.rulebook.version == 2
    assert 'name="base" value="2"' in conflict.text
    assert (await publish(other, mine, 2)).status == 200
    assert site.limiter.rulebook.version == 3


async def test_a_broken_rulebook_is_not_published(site: Site, operator: Visitor) -> None:
    before = site.limiter.rulebook
    page = await publish(operator, "rules:\n  - name: buy\n    limit: nothing\n", 1)
    assert page.status == 400
    assert "limit: nothing" in page.words
    assert site.limiter.rulebook is before


async def test_a_preview_says_what_would_change_and_how_many_calls_it_saw(site: Site, operator: Visitor) -> None:
    await publish(operator, OLD, 1)
    await site.buy("bob", 6)
    site.recent.close()
    preview = await for_script(operator, "/dashboard/rules/preview", OLD.replace("2/hour", "5/hour"))
    assert preview["calls"] == 6
    assert "<b>3</b> newly passed" in str(preview["html"])
    assert site.limiter.rulebook.version == 2  # nothing was published


async def test_rules_of_a_file_are_changed_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(OLD)
    async with Site(rules=str(path)) as site:
        operator = Visitor(site)
        await operator.log_in()
        page = await operator.get("/dashboard/rules")
        assert f"From {path}: change it there" in page.words
        assert "Publish version" not in page.words


async def test_an_operator_previews_an_uploaded_log_and_a_viewer_does_not(
    site: Site, operator: Visitor, viewer: Visitor
) -> None:
    text = "rules:\n  - name: visits\n    key: address\n    limit: 2/hour\n"
    line = '192.0.2.7 - - [10/Oct/2026:13:55:%02d +0000] "GET /a HTTP/1.1" 200 5 "-" "-"\n'
    log = "".join(line % second for second in range(30))
    for visitor, status in ((operator, 200), (viewer, 403)):
        token = (await visitor.get("/dashboard/rules")).form_token
        fields = {"text": text, "format": "yaml", "form": token, "log": log}
        answer = await visitor.post("/dashboard/rules/preview", fields, **{"x-requested-with": "page"})
        assert answer.status == status, answer.text
        if status == 200:
            preview = json.loads(answer.text)
            assert preview["calls"] == 30
            assert "<b>28</b> newly refused" in preview["html"]
