"""Nobody sees or changes what they may not: strangers, viewers, forged forms, guessed tokens."""

import re

import pytest

from headgate.service.settings import TrustedProxies
from tests.dashboard.dashboard_harness import BOOK, TOKEN, Site, Visitor, key_path

PAGES = (
    *(
        "/dashboard/",
        "/dashboard/rule?name=buy",
        "/dashboard/rule/series?name=buy",
        "/dashboard/rule/keys?name=buy",
    ),
    *(key_path("buy", "user=bob"), "/dashboard/rules", "/dashboard/rules/version?number=1", "/dashboard/audit"),
    *("/dashboard/number", "/dashboard/playground", "/dashboard/live"),
)
CHANGES = {
    "/dashboard/key/override": {"rule": "buy", "key": "user=bob", "limits": "9/hour", "reason": "r"},
    "/dashboard/key/block": {"rule": "buy", "key": "user=bob", "reason": "r"},
    "/dashboard/key/exempt": {"rule": "buy", "key": "user=bob", "reason": "r"},
    "/dashboard/key/reset": {"rule": "buy", "key": "user=bob", "reason": "r"},
    "/dashboard/key/unset": {"rule": "buy", "key": "user=bob", "reason": "r"},
    "/dashboard/undo": {"rule": "buy", "key": "user=bob", "id": "1"},
    "/dashboard/rules/publish": {"text": "rules: []", "format": "yaml", "base": "1", "note": "n"},
    "/dashboard/rules/rollback": {"to": "1", "note": "n"},
    "/dashboard/rule/stages/start": {"name": "buy", "hold": "10s", "bound": "5 %", "reason": "r"},
    "/dashboard/rule/stages/stop": {"name": "buy", "reason": "r"},
    "/dashboard/number/check": {"by": "address"},
    "/dashboard/number/upload": {},
    "/dashboard/number/shadow": {"limit": "9/hour", "by": "address", "log": "access.log"},
}


async def state(site: Site) -> object:
    overrides = [each async for each in site.limiter.overrides("buy").list()]
    return site.limiter.rulebook, overrides, await site.site.admin.handlers.audit_trail.latest(10)


@pytest.mark.parametrize("path", PAGES)
async def test_a_stranger_is_led_to_the_login(stranger: Visitor, path: str) -> None:
    page = await stranger.get(path)
    assert (page.status, page.text) == (303, "")
    assert (page.field("location") or "").startswith("/dashboard/login")


@pytest.mark.parametrize("path", CHANGES)
async def test_a_stranger_changes_nothing(site: Site, stranger: Visitor, path: str) -> None:
    before = await state(site)
    assert (await stranger.post(path, CHANGES[path])).status == 401
    assert await state(site) == before


@pytest.mark.parametrize("path", CHANGES)
async def test_a_viewer_changes_nothing(site: Site, viewer: Visitor, path: str) -> None:
    before = await state(site)
    token = (await viewer.get("/dashboard/")).form_token
    assert (await viewer.post(path, CHANGES[path] | {"form": token})).status == 403
    assert await state(site) == before


@pytest.mark.parametrize("path", CHANGES)
async def test_a_form_of_another_session_or_site_changes_nothing(site: Site, operator: Visitor, path: str) -> None:
    other = Visitor(site, "192.0.2.9")
    await other.log_in(user="eve")
    before, strange = await state(site), (await other.get("/dashboard/")).form_token
    form_token = (await operator.get("/dashboard/")).form_token
    for fields, headers in (
        ({}, {}),
        ({"form": strange}, {}),
        ({"form": form_token}, {"origin": "https://evil.test"}),
        ({"form": form_token}, {"origin": "null"}),
    ):
        page = await operator.post(path, CHANGES[path] | fields, **headers)
        assert page.status == 403, page.words
        assert "Nothing was changed" in page.words
    assert await state(site) == before


async def test_a_viewer_sees_no_form_that_changes_something(viewer: Visitor) -> None:
    for path in (key_path("buy", "user=bob"), "/dashboard/rules", "/dashboard/audit"):
        page = await viewer.get(path)
        forms = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', page.text)
        assert set(forms) <= {"/dashboard/logout", "/dashboard/rules/publish"}, path
        assert "Publish version" not in page.text
        assert ">Undo<" not in page.text


@pytest.mark.parametrize("path", [*PAGES[:-1], "/dashboard/login", "/dashboard/nothing"])
async def test_every_page_forbids_inline_code(operator: Visitor, path: str) -> None:
    page = await operator.get(path)
    policy = page.field("content-security-policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.field("x-content-type-options") == "nosniff"
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page.text, re.S)
    assert all(not code or 'type="application/json"' in attributes for attributes, code in scripts)
    assert not re.search(r"\son[a-z]+=|\sstyle=|<style|javascript:", page.text)


async def test_the_sixth_guess_waits_also_if_it_is_right(stranger: Visitor, site: Site) -> None:
    for _ in range(5):
        page = await stranger.log_in("a guess")
        assert page.status == 401
    page = await stranger.log_in(TOKEN)
    assert (page.status, "Too many wrong tokens" in page.words) == (429, True)
    assert int(page.field("retry-after") or 0) > 60
    assert (await Visitor(site, "192.0.2.77").log_in()).status == 303  # others are not locked out


async def test_a_right_login_costs_no_guess(site: Site) -> None:
    for _ in range(8):
        assert (await Visitor(site, "192.0.2.5").log_in()).status == 303


async def test_a_login_leads_to_our_pages_only(stranger: Visitor) -> None:
    for target in ("https://evil.test/", "//evil.test", "/dashboard/\\evil", "/other", "/dashboard/\r\nx: y"):
        page = await stranger.post("/dashboard/login", {"token": TOKEN, "user": "ann", "next": target})
        assert page.field("location") == "/dashboard/"
    page = await stranger.post("/dashboard/login", {"token": TOKEN, "user": "ann", "next": "/dashboard/rules"})
    assert page.field("location") == "/dashboard/rules"


async def test_a_changed_cookie_is_worth_nothing(operator: Visitor) -> None:
    cookie = operator.cookies["headgate_session"]
    for index in range(0, len(cookie), 7):
        other = "A" if cookie[index] != "A" else "B"
        operator.cookies["headgate_session"] = cookie[:index] + other + cookie[index + 1 :]
        assert (await operator.get("/dashboard/audit")).status == 303


async def test_the_cookie_is_for_this_site_and_no_script(site: Site) -> None:
    page = await Visitor(site).log_in()
    cookie = page.field("set-cookie") or ""
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/dashboard" in cookie


async def test_names_and_keys_are_shown_as_text(operator: Visitor, site: Site) -> None:
    evil = "<script>alert(1)</script>"
    await site.buy(evil, 3)
    page = await operator.get("/dashboard/rule?name=buy")
    assert evil in page.words
    assert "<script>alert" not in page.text
    page = await operator.get(key_path("buy", f"user={evil}"))
    assert "<script>alert" not in page.text


@pytest.mark.parametrize(
    ("address", "user", "status", "may_change"),
    [
        ("10.0.0.1", "olga", 200, True),
        ("10.0.0.1", "vera", 200, False),
        ("192.0.2.6", "olga", 303, False),  # not the proxy
    ],
)
async def test_a_trusted_proxy_names_the_user(address: str, user: str, status: int, may_change: bool) -> None:
    async with Site(
        BOOK,
        trusted=TrustedProxies("10.0.0.0/8"),
        dashboard_user_header="x-forwarded-user",
        dashboard_operators=("olga",),
    ) as site:
        visitor = Visitor(site, address)
        page = await visitor.get(key_path("buy", "user=bob"), **{"x-forwarded-user": user})
        assert page.status == status
        assert ("Block" in page.words) is may_change
