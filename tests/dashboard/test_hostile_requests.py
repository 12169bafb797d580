"""Hostile requests: forms that are too large or not ours, odd headers, cookies, numbers, names and uploads."""

import base64
import json
import time
from typing import Any

import pytest

from headgate.service.dashboard import app
from headgate.service.dashboard.sessions import OPERATOR
from headgate.service.settings import TrustedProxies
from tests.dashboard.dashboard_harness import BOOK, TOKEN, Site, VisitedPage, Visitor, key_path

BOB = key_path("buy", "user=bob")
BLOCK = {"rule": "buy", "key": "user=bob", "reason": "r"}
LARGE = str(16 * 1024 * 1024)
SCRIPT = {"x-requested-with": "page"}


async def token_of(visitor: Visitor) -> str:
    return (await visitor.get("/dashboard/audit")).form_token


async def post_json(visitor: Visitor, path: str, fields: Any, **headers: str) -> VisitedPage:
    headers = {"content-type": "application/json", "x-headgate-form": await token_of(visitor), **SCRIPT, **headers}
    return await visitor.send_request("POST", path, json.dumps(fields).encode(), headers)


def assert_explained(page: VisitedPage, status: int = 400) -> None:
    assert page.status == status, page.words
    assert "defect" not in page.words
    assert "frame-ancestors 'none'" in (page.field("content-security-policy") or "")


async def test_the_form_of_a_stranger_or_a_viewer_is_not_even_read(viewer: Visitor, stranger: Visitor) -> None:
    token = await token_of(viewer)
    for visitor, status in ((viewer, 403), (stranger, 401)):
        page = await visitor.post("/dashboard/key/block", BLOCK | {"form": token}, **{"content-length": LARGE})
        assert (page.status, visitor.bodies_read) == (
            status,
            0 if visitor is stranger else 1,
        )  # it logged in by one


async def test_a_form_of_another_site_is_not_read(operator: Visitor) -> None:
    token, before = await token_of(operator), operator.bodies_read
    for headers in ({"origin": "https://evil.test"}, {"origin": "null"}, {"x-headgate-form": "a guess"}):
        page = await operator.post("/dashboard/rules/publish", {"form": token}, **headers)
        assert_explained(page, 403)
    assert operator.bodies_read == before


async def test_a_large_form_without_a_token_is_not_parsed(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: object) -> dict[str, str]:
        raise AssertionError("The form was parsed.")

    monkeypatch.setattr(app, "form_of", fail)
    text = "a" * 500_000
    page = await operator.post("/dashboard/rules/publish", {"text": text}, **{"content-length": "500005"})
    assert_explained(page, 403)


async def test_only_the_rulebook_and_a_log_may_be_large(operator: Visitor, viewer: Visitor) -> None:
    large = {"content-length": "100000"}
    page = await operator.post("/dashboard/key/block", BLOCK | {"reason": "r" * 100_000}, **large)
    assert_explained(page, 413)
    page = await viewer.post("/dashboard/rules/check", {}, **{"content-length": "2000000"})
    assert_explained(page, 413)
    text = "rules: []\n#" + "x" * 200_000
    fields = {"text": text, "format": "yaml", "base": "1", "note": "n"}
    body = {"form": await token_of(operator), **fields}
    page = await operator.post("/dashboard/rules/publish", body, **{"content-length": str(300_000)})
    assert page.status == 303


async def test_large_forms_use_up_the_limit_of_requests(operator: Visitor) -> None:
    statuses = []
    for _ in range(6):
        page = await operator.post("/dashboard/rules/preview", {}, **{"content-length": LARGE})
        statuses.append(page.status)
    assert statuses[0] == 403  # it has no token
    assert 429 in statuses


async def test_the_page_of_a_key_counts_as_five_requests(operator: Visitor) -> None:
    begun = time.monotonic()
    statuses = [(await operator.get(key_path("buy", "user=bob"))).status for _ in range(60)]
    assert statuses[0] == 200
    assert statuses.count(200) <= 20 + 8 * (time.monotonic() - begun) + 1


async def test_a_script_s_form_is_json(operator: Visitor) -> None:
    page = await post_json(operator, "/dashboard/rules/check", {"text": "rules: []", "format": "yaml"})
    assert json.loads(page.text)["problems"] == []
    odd: tuple[Any, ...] = ([1], {"text": 1}, {"text": {"a": []}}, "x")
    for each in odd:
        assert_explained(await post_json(operator, "/dashboard/rules/check", each))
    page = await post_json(operator, "/dashboard/rules/check", {}, **{"x-headgate-form": "wrong"})
    assert_explained(page, 403)


@pytest.mark.parametrize(
    "foreign",
    [
        '"',
        "a[b]=c",
        "x=\x01",
        "{'json': [1, 2]}",
        "=; ;;=;",
        "headgate_session=theirs",
        'k="a; b\\',
        "ä=ö",
        "a" * 4000,
    ],
)
async def test_a_cookie_of_another_program_locks_nobody_out(operator: Visitor, foreign: str) -> None:
    cookie = operator.cookies.pop("headgate_session")
    ours = f"headgate_session={cookie}"
    for line in (f"{foreign}; {ours}", f"{ours}; {foreign}", f'{foreign}; headgate_session="{cookie}"'):
        page = await operator.get("/dashboard/audit", cookie=line)
        assert page.status == 200
        operator.cookies.clear()


async def test_an_odd_cookie_is_no_session(site: Site, operator: Visitor) -> None:
    sessions = site.site.dashboard._sessions
    cookie = operator.cookies["headgate_session"]
    user, role, identity, _ = json.loads(base64.urlsafe_b64decode(cookie.partition(".")[0]))
    odd = [f"form {user} {role} {identity}.{await token_of(operator)}", ".", "a.b", "²", "é.é"]
    payloads = [
        b"",
        b"[]",
        b"{",
        b"1",
        b'["a", "operator", "b", "c"]',
        b'["a", "operator", "b", null]',
        b"\xff" * 9,
    ]
    payloads.append(json.dumps(["ann", "operator", "b", time.time() + 99, "more"]).encode())
    for payload in payloads:
        packed = base64.urlsafe_b64encode(payload).decode()
        odd.append(f"{packed}.{sessions._sign(OPERATOR, f'session {packed}')}")
        odd.append(f"{packed}.{sessions._sign(OPERATOR, packed)}")
    for each in odd:
        operator.cookies["headgate_session"] = each
        assert (await operator.get("/dashboard/audit")).status == 303, each


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "[", "", "://", "http://headgate.test:x", "null", "é"]
)
async def test_an_odd_origin_is_foreign(operator: Visitor, stranger: Visitor, origin: str) -> None:
    page = await operator.post("/dashboard/key/block", BLOCK | {"form": await token_of(operator)}, origin=origin)
    assert_explained(page, 403)
    page = await stranger.post("/dashboard/login", {"token": TOKEN, "user": "ann"}, origin=origin)
    assert_explained(page, 403)


@pytest.mark.parametrize(
    "name", ["a" * 300 + ".js", "vendor/" + "a" * 300 + ".css", "a\x00.js", "é.js", "..js", "a/"]
)
async def test_an_odd_file_name_is_not_found(stranger: Visitor, name: str) -> None:
    assert_explained(await stranger.get(f"/dashboard/static/{name}"), 404)


@pytest.mark.parametrize("number", ["²", "٣", "-1", "1.0", "1" * 16, "x", " 1"])
async def test_an_odd_number_is_refused(operator: Visitor, number: str) -> None:
    token = await token_of(operator)
    assert_explained(await operator.get(f"/dashboard/rules/version?number={number}"))
    publication = {"form": token, "text": "rules: []", "format": "yaml", "base": number, "note": "n"}
    assert_explained(await operator.post("/dashboard/rules/publish", publication))
    assert_explained(
        await operator.post("/dashboard/rules/rollback", {"form": token, "to": number, "base": "1", "note": "n"})
    )


@pytest.mark.parametrize("ttl", ["²", "-5", "٣", "999999999", "0s", "", "x", "9" * 400])
async def test_an_odd_time_to_live_is_refused(operator: Visitor, ttl: str) -> None:
    fields = BLOCK | {"form": await token_of(operator), "limits": "9/hour", "ttl": ttl}
    assert_explained(await operator.post("/dashboard/key/override", fields))
    assert "Its own limit" not in (await operator.get(BOB)).words


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"reason": "r" * 301}, "at most 300"),
        ({"reason": "a\nb"}, "without control characters"),
        ({"reason": "a\x00b"}, "without control characters"),
        ({"reason": "a\u202eb"}, "without control characters"),
        ({"reason": " \t "}, "Say why"),
        ({"key": "user=" + "b" * 8200}, "at most 8,192"),
        ({"key": "user=b\nb"}, "control character"),
        ({"rule": "b" * 257}, "at most 256"),
        ({"limits": "9/hour; " * 200}, "at most 1,000"),
    ],
)
async def test_texts_are_bounded(operator: Visitor, fields: dict[str, str], sentence: str) -> None:
    whole = {"form": await token_of(operator), "limits": "9/hour", **BLOCK, **fields}
    page = await operator.post("/dashboard/key/override", whole)
    assert_explained(page)
    assert sentence in page.words
    audit = await operator.get("/dashboard/audit")
    assert "override set" not in audit.words


async def test_a_rollback_needs_a_note_of_one_line(operator: Visitor) -> None:
    for note, sentence in (("", "Write a note"), ("n" * 501, "at most 500"), ("a\nb", "control characters")):
        page = await operator.post(
            "/dashboard/rules/rollback", {"form": await token_of(operator), "to": "1", "base": "1", "note": note}
        )
        assert_explained(page)
        assert sentence in page.words


@pytest.mark.parametrize("log", ["time," + "x" * 7_900_000, "time,path\n1," + '"' * 300_001, '"' + "\x00" * 99])
async def test_an_odd_log_is_refused(operator: Visitor, log: str) -> None:
    fields = {"text": "rules: []", "format": "yaml", "log": log}
    page = await post_json(operator, "/dashboard/rules/preview", fields, **{"content-length": "8000000"})
    assert page.status in (200, 400), page.text[:300]
    assert len(page.text) < 5000


@pytest.mark.parametrize(
    ("address", "scheme", "secure"),
    [("10.0.0.1", "https", True), ("10.0.0.1", "http", False), ("192.0.2.9", "https", False)],
)
async def test_behind_a_proxy_with_tls_cookies_are_secure(address: str, scheme: str, secure: bool) -> None:
    async with Site(BOOK, trusted=TrustedProxies("10.0.0.0/8")) as site:
        visitor = Visitor(site, address)
        fields = {"token": TOKEN, "user": "ann"}
        page = await visitor.post("/dashboard/login", fields, **{"x-forwarded-proto": scheme})
        assert (page.status, "; Secure" in (page.field("set-cookie") or "")) == (303, secure)
        page = await visitor.get("/dashboard/?lang=zh", **{"x-forwarded-proto": scheme})
        cookie = page.field("set-cookie") or ""
        assert ("; Secure" in cookie, "; HttpOnly" in cookie, "SameSite=Strict" in cookie) == (secure, True, True)
