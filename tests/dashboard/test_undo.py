"""Undoing: an override comes back with the time that it had left, and a change is undone once."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from headgate.operations.audit_trail import AuditEntry
from headgate.service.dashboard.operator_actions import Actor
from tests.dashboard.dashboard_harness import Site, VisitedPage, Visitor, key_path
from tests.servers import RedisServer

BOB = key_path("buy", "user=bob")
FIELDS = {"rule": "buy", "key": "user=bob", "reason": "a good customer"}


@pytest.fixture(params=["memory", "redis"])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Site, Visitor]]:
    """A site that counts in memory, and one that counts in Redis."""
    if request.param == "memory":
        async with Site() as site:
            yield site, await logged_in(site)
        return
    with RedisServer() as redis:
        async with Site(engine=redis.url) as site:
            yield site, await logged_in(site)


async def logged_in(site: Site, address: str = "192.0.2.1", user: str = "ann") -> Visitor:
    visitor = Visitor(site, address)
    await visitor.log_in(user=user)
    return visitor


async def change(operator: Visitor, action: str, **fields: str) -> VisitedPage:
    page = await operator.send_form(await operator.get(BOB), f"/dashboard/key/{action}", **FIELDS | fields)
    assert page.status == 200, page.words
    return page


async def undo(operator: Visitor, entry: AuditEntry) -> VisitedPage:
    page = await operator.get(BOB)
    return await operator.send_form(page, "/dashboard/undo", rule="buy", key="user=bob", id=entry.id)


async def latest(site: Site) -> AuditEntry:
    return (await site.site.admin.handlers.audit_trail.latest(1))[0]


async def expires_in(site: Site) -> float | None:
    return await site.site.admin.handlers.counter_handlers._clients.override_expires_in("buy", "user=bob")


async def test_a_temporary_override_is_restored_with_the_time_that_it_had_left(
    shop: tuple[Site, Visitor],
) -> None:
    site, operator = shop
    await change(operator, "override", limits="50/hour", ttl="3600")
    await change(operator, "override", limits="5/hour", ttl="0")
    assert await expires_in(site) is None
    assert (await undo(operator, await latest(site))).status == 200
    remaining_s = await expires_in(site)
    assert remaining_s is not None
    assert 3000 < remaining_s <= 3600
    assert "50/hour" in (await operator.get(BOB)).words


async def test_an_override_that_lasts_is_restored_so(shop: tuple[Site, Visitor]) -> None:
    site, operator = shop
    await change(operator, "override", limits="50/hour", ttl="0")
    await change(operator, "unset")
    assert (await undo(operator, await latest(site))).status == 200
    assert await expires_in(site) is None
    assert "50/hour" in (await operator.get(BOB)).words


async def test_an_override_that_has_ended_is_not_restored(shop: tuple[Site, Visitor]) -> None:
    site, operator = shop
    await change(operator, "override", limits="50/hour", ttl="3600")
    await change(operator, "override", limits="5/hour", ttl="0")
    entry = await latest(site)
    actions = site.site.dashboard.actions
    # The change was made two hours ago, so the first override has ended an hour ago.
    await actions.undo(entry._replace(at_us=entry.at_us - 7_200_000_000), Actor("ann", "", "r"))
    assert "Its own limit" not in (await operator.get(BOB)).words


async def test_what_was_removed_and_has_ended_stays_away(shop: tuple[Site, Visitor]) -> None:
    site, operator = shop
    await change(operator, "override", limits="50/hour", ttl="3600")
    await change(operator, "unset")
    entry = await latest(site)
    actions = site.site.dashboard.actions
    with pytest.raises(ValueError, match="has ended meanwhile"):
        await actions.undo(entry._replace(at_us=entry.at_us - 7_200_000_000), Actor("ann", "", "r"))
    assert "Its own limit" not in (await operator.get(BOB)).words
    # That it failed does not use up the undoing.
    assert (await undo(operator, entry)).status == 200


async def test_an_older_change_is_not_undone_over_a_newer_one(shop: tuple[Site, Visitor]) -> None:
    site, operator = shop
    await change(operator, "override", limits="50/hour", ttl="0")
    older = await latest(site)
    await change(operator, "override", limits="9/hour", ttl="0")
    newer = await latest(site)
    page = await undo(operator, older)
    assert (page.status, "it is 9/hour now, until it is undone. It stays." in page.words) == (400, True)
    assert "Its own limit 9/hour" in (await operator.get(BOB)).words
    # From the newest on, all of them can be undone.
    assert (await undo(operator, newer)).status == 200
    assert "Its own limit 50/hour" in (await operator.get(BOB)).words
    assert (await undo(operator, older)).status == 200
    assert "Its own limit" not in (await operator.get(BOB)).words


async def test_a_removal_is_not_undone_over_a_newer_limit(shop: tuple[Site, Visitor]) -> None:
    site, operator = shop
    await change(operator, "override", limits="50/hour", ttl="0")
    await change(operator, "unset")
    removal = await latest(site)
    await change(operator, "override", limits="9/hour", ttl="3600")
    page = await undo(operator, removal)
    assert (page.status, "it is 9/hour now, for another" in page.words) == (400, True)
    assert "Its own limit 9/hour" in (await operator.get(BOB)).words


async def test_the_same_limit_set_again_for_longer_stays(shop: tuple[Site, Visitor]) -> None:
    site, operator = shop
    await change(operator, "override", limits="50/hour", ttl="3600")
    older = await latest(site)
    await change(operator, "override", limits="50/hour", ttl="0")
    page = await undo(operator, older)
    assert (page.status, "50/hour holds until it is undone. It stays." in page.words) == (400, True)
    assert await expires_in(site) is None


async def test_a_reset_is_undone_once_also_by_two_operators_at_once(shop: tuple[Site, Visitor]) -> None:
    site, operator = shop
    other = await logged_in(site, "192.0.2.8", "oleg")
    await change(operator, "override", limits="10/hour", ttl="0")
    await site.buy("bob", 3)
    await change(operator, "reset")
    entry = await latest(site)
    pages = await asyncio.gather(undo(operator, entry), undo(other, entry))
    assert sorted(page.status for page in pages) == [200, 400]
    assert any("undone already" in page.words for page in pages)
    again = await undo(operator, entry)
    assert (again.status, "undone already" in again.words) == (400, True)
    assert "Remaining 7 (10/hour)" in (await operator.get(BOB)).words


async def test_a_change_that_was_undone_has_no_button(shop: tuple[Site, Visitor]) -> None:
    site, operator = shop
    await change(operator, "override", limits="50/hour", ttl="0")
    entry = await latest(site)
    assert f'name="id" value="{entry.id}"' in (await operator.get(BOB)).text
    await undo(operator, entry)
    page = await operator.get(BOB)
    assert f'name="id" value="{entry.id}"' not in page.text
    assert re.search(r"override set: 50/hour.*undone", page.words)
