"""The audit page has all that is kept: 2,000 changes, 200 on a page."""

from headgate.operations.audit_trail import MAX_ENTRIES
from tests.dashboard.dashboard_harness import Site, Visitor


async def test_the_oldest_change_that_is_kept_can_be_found_and_reached(site: Site, operator: Visitor) -> None:
    trail = site.site.admin.handlers.audit_trail
    for number in range(MAX_ENTRIES):
        await trail.add("key reset", "ann", "192.0.2.1", {"rule": "buy", "key": f"user=u{number}"})
    assert "buy · user=u0 " in (await operator.get("/dashboard/audit?find=u0")).words
    page = await operator.get("/dashboard/audit")
    assert f"user=u{MAX_ENTRIES - 1} " in page.words
    assert page.text.count("<tr>") == 201
    assert "1,800 older changes" in page.words
    assert "/dashboard/audit?find=&amp;from=200" in page.text
    last = await operator.get("/dashboard/audit?from=1800")
    assert "user=u0 " in last.words
    assert "older changes" not in last.words
    assert (await operator.get("/dashboard/audit?from=x")).status == 400
