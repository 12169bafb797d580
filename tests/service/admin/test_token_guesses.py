"""Wrong tokens at the login and at the admin API are counted together, and lock out no holder of a token."""

from collections.abc import AsyncIterator

import pytest

from tests.dashboard.dashboard_harness import TOKEN, VIEWER_TOKEN, Site, Visitor

ADDRESS = "192.0.2.7"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as site:
        yield site


async def status_of_api(site: Site, token: str | None, address: str = ADDRESS) -> int:
    fields = {} if token is None else {"authorization": f"Bearer {token}"}
    return (await Visitor(site, address).get("/status", **fields)).status


async def status_of_login(site: Site, token: str, address: str = ADDRESS) -> int:
    return (await Visitor(site, address).log_in(token)).status


async def test_login_and_api_share_one_count(site: Site) -> None:
    assert [await status_of_api(site, "a guess") for _ in range(3)] == [401] * 3
    assert [await status_of_login(site, "a guess") for _ in range(2)] == [401] * 2
    assert await status_of_login(site, "a guess") == 429
    assert await status_of_login(site, TOKEN) == 429  # also if it is right: it could be a guess
    for token in (TOKEN, "a guess"):  # the answer is the same
        page = await Visitor(site, ADDRESS).get("/status", authorization=f"Bearer {token}")
        assert (page.status, int(page.field("retry-after") or 0) > 60) == (401, True)
        assert "Too many wrong tokens" in page.text


async def test_other_addresses_are_not_locked_out(site: Site) -> None:
    for _ in range(7):
        await status_of_api(site, "a guess")
    assert await status_of_api(site, TOKEN, "192.0.2.8") == 200
    assert await status_of_login(site, TOKEN, "192.0.2.8") == 303


async def test_a_stranger_locks_out_no_holder_of_the_same_address(site: Site) -> None:
    assert await status_of_api(site, TOKEN) == 200
    for _ in range(7):
        await status_of_api(site, "a guess")
    assert await status_of_login(site, "a guess") == 429
    assert await status_of_api(site, TOKEN) == 200
    assert await status_of_login(site, TOKEN) == 303


async def test_a_viewer_guesses_no_operator_s_token(site: Site) -> None:
    assert await status_of_login(site, VIEWER_TOKEN) == 303
    for _ in range(5):
        await status_of_api(site, VIEWER_TOKEN)
    assert await status_of_login(site, TOKEN) == 429
    assert await status_of_login(site, VIEWER_TOKEN) == 303


async def test_what_shows_no_token_guesses_nothing(site: Site) -> None:
    assert [await status_of_api(site, None) for _ in range(8)] == [401] * 8
    assert await status_of_login(site, TOKEN) == 303


async def test_a_right_token_costs_no_guess(site: Site) -> None:
    assert [await status_of_api(site, TOKEN) for _ in range(8)] == [200] * 8
    assert [await status_of_api(site, "a guess") for _ in range(5)] == [401] * 5
