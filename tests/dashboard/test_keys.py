"""An operator finds a refused key, changes it, and undoes that; all of it is in the audit trail."""

import re

import pytest

from tests.dashboard.dashboard_harness import Site, Visitor, key_path

BOB = key_path("buy", "user=bob")
FIELDS = {"rule": "buy", "key": "user=bob", "reason": "a good customer"}


async def undo_last(operator: Visitor) -> None:
    page = await operator.get(BOB)
    change = re.search(r'name="id" value="([^"]+)"', page.text)
    assert change is not None, page.words
    page = await operator.send_form(page, "/dashboard/undo", rule="buy", key="user=bob", id=change[1])
    assert page.status == 200, page.words


async def test_a_refused_key_is_found_with_its_story(site: Site, operator: Visitor) -> None:
    await site.buy("bob", 5)
    site.recent.close()  # writes what waits
    overview = await operator.get("/dashboard/")
    assert re.search(r'data-rule="buy".*data-rule="all"', overview.text, re.S)
    rule = await operator.get("/dashboard/rule?name=buy")
    assert re.search(r"user=bob 5 3 60 % 0 0 \(2/hour\) \d\.\d s /buy", rule.words)
    key = await operator.get(BOB)
    assert "Its next call is refused" in key.words
    assert "Calls what /buy" in key.words


async def test_a_key_that_passes_again_is_not_shown_as_refused(site: Site, operator: Visitor) -> None:
    await site.buy("bob", 5)
    site.recent.close()  # writes what waits
    assert "Refused since" in (await operator.get(key_path("buy", "user=bob"))).words
    page = await operator.get(key_path("buy", "user=bob"))
    form = {"rule": "buy", "key": "user=bob", "reason": "a good customer"}
    page = await operator.send_form(page, "/dashboard/key/reset", **form)
    assert "Its next call passes" in page.words
    assert "Refused since" not in page.words
    assert "Refused now and then since" in page.words


async def test_an_override_lets_a_key_pass_and_is_undone(site: Site, operator: Visitor) -> None:
    assert await site.buy("bob", 3) == [True, True, False]
    page = await operator.get(BOB)
    page = await operator.send_form(page, "/dashboard/key/override", **FIELDS, limits="9/hour", ttl="3600")
    assert "9/hour" in page.words
    assert await site.buy("bob") == [True]
    await undo_last(operator)
    assert await site.buy("bob") == [False]
    audit = await operator.get("/dashboard/audit")
    assert re.search(r"ann 192.0.2.1 override set buy · user=bob for 1 h 9/hour a good customer", audit.words)
    assert re.search(r"override unset buy · user=bob 9/hour undo of: override set", audit.words)


async def test_a_reset_is_undone_by_charging_again(site: Site, operator: Visitor) -> None:
    await site.buy("bob", 3)
    await operator.send_form(await operator.get(BOB), "/dashboard/key/reset", **FIELDS)
    assert "Remaining 2 (2/hour)" in (await operator.get(BOB)).words
    await undo_last(operator)
    assert await site.buy("bob") == [False]


@pytest.mark.parametrize(
    "limit", ["2/hour", "10/s burst 20", "100/hour fixed", "30/minute sliding", "30/minute log"]
)
async def test_a_blocked_key_passes_no_more_and_an_exempt_one_always(limit: str) -> None:
    rule = {"name": "buy", "key": "user", "missing": "skip", "limit": limit, "overrides": True}
    async with Site({"rules": [rule]}) as site:
        operator = Visitor(site)
        await operator.log_in()
        await site.buy("bob", 1)
        await operator.send_form(await operator.get(BOB), "/dashboard/key/block", **FIELDS, ttl="0")
        assert await site.buy("bob", 3) == [False] * 3
        await undo_last(operator)
        assert await site.buy("bob", 2) == [True, True]
        await operator.send_form(await operator.get(BOB), "/dashboard/key/exempt", **FIELDS, ttl="0")
        assert all(await site.buy("bob", 300))


async def test_mistakes_are_shown_beside_the_form(operator: Visitor) -> None:
    page = await operator.get(BOB)
    answer = await operator.send_form(page, "/dashboard/key/override", **FIELDS, limits="9 an hour", ttl="3600")
    assert answer.status == 400
    assert '"9 an hour"' in answer.words
    answer = await operator.send_form(
        page, "/dashboard/key/block", rule="buy", key="user=bob", reason=" ", ttl="3600"
    )
    assert (answer.status, "Say why" in answer.words) == (400, True)
    answer = await operator.send_form(page, "/dashboard/key/block", rule="buy", key="nonsense", reason="r")
    assert answer.status == 400


async def test_a_rule_without_overrides_says_how_to_get_them(operator: Visitor) -> None:
    page = await operator.get(key_path("all", "address=192.0.2.7"))
    assert "takes no overrides" in page.words
