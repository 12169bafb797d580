"""Random requests to every page, with odd forms, queries, headers and cookies: none is answered by a 500."""

import json
import random
from urllib.parse import quote, urlencode

from tests.dashboard.dashboard_harness import BOOK, TOKEN, VIEWER_TOKEN, Site, Visitor

REQUESTS = 1500
SEED = 20_261_119
TEXTS = (
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "²",
        "٣",
        "1e9",
        "9" * 30,
        "nan",
        "inf",
        "\x00",
        "a\nb",
        "\u202e",
        "é",
        "李雷",
        "💥",
    ),
    *(
        "buy",
        "all",
        "user=bob",
        "user=",
        "=",
        "user=a|sku=b",
        "user=\x00",
        "b" * 300,
        "k" * 9000,
        "{}",
        "[1]",
        "{name}",
    ),
    *(
        "9/hour",
        "9 an hour",
        "1/3650d",
        "10m",
        "1 %",
        "², %",
        "minute",
        "hour",
        "yaml",
        "toml",
        "json",
        "zh",
        "en",
    ),
    *(
        "rules: []",
        "rules: {",
        "a: &a [*a]",
        "[",
        "\t- x",
        "rules:\n  - name: buy\n    limit: 9/hour\n",
        "rules = 3",
    ),
    *(
        "<script>alert(1)</script>",
        "' OR 1=1",
        "../../etc/passwd",
        "%00",
        "%zz",
        "/dashboard/rules",
        "//evil.test",
    ),
    *('10.0.0.1 - - [10/Oct/2026:13:55:00 +0000] "GET / HTTP/1.1" 200 5', '{"time": 1}', "time,path\n1,/", '"'),
)
FIELDS = (
    *(
        "rule",
        "key",
        "reason",
        "limits",
        "ttl",
        "id",
        "text",
        "format",
        "base",
        "note",
        "to",
        "number",
        "name",
        "span",
    ),
    *("find", "lang", "all", "next", "user", "token", "hold", "bound", "log", "form", "older", "é", ""),
)
PATHS = (
    *("/", "", "/live", "/rule", "/rule/series", "/rule/keys", "/rule/stages/start", "/rule/stages/stop", "/key"),
    *("/key/override", "/key/unset", "/key/block", "/key/exempt", "/key/reset", "/undo", "/rules", "/rules/check"),
    *(
        "/rules/publish",
        "/rules/rollback",
        "/rules/version",
        "/audit",
        "/login",
        "/logout",
        "/static/page.js",
        "/x",
    ),
    *("/static/²", "/key/é", "/rules/preview"),
)
HEADERS = (
    *("origin", "host", "content-type", "accept-language", "x-requested-with", "x-headgate-form"),
    *("x-forwarded-proto", "x-forwarded-for", "cookie", "if-match", "authorization", "x-headgate-author"),
)
VALUES = (
    *TEXTS,
    *(
        "http://[",
        "null",
        "http://headgate.test",
        "headgate.test",
        "application/json",
        "application/json; x",
        "text/css",
    ),
    *("en;q=9", "zh;q=é", "headgate_session=a.b", "headgate_session", "a[b]=c; headgate_theme=²", ";;;", "https"),
    *(
        "Bearer",
        "Bearer x",
        f"Bearer {TOKEN}",
        "application/x-www-form-urlencoded",
        "*",
        '"3"',
        "99999999999999999999",
    ),
)


# Requests that are right; in most random ones a field or two of these are replaced.
BOOK_FORM = {"text": "rules: []", "format": "yaml", "base": "1", "note": "n"}
KEY_FORM = {"rule": "buy", "key": "user=bob", "reason": "r", "limits": "9/hour", "ttl": "3600", "id": "1"}
STAGES_FORM = {"name": "buy", "reason": "r", "hold": "10m", "bound": "1 %"}
FORMS = {
    **{f"/key/{action}": KEY_FORM for action in ("override", "unset", "block", "exempt", "reset")},
    "/undo": KEY_FORM,
    "/rule/stages/start": STAGES_FORM,
    "/rule/stages/stop": STAGES_FORM,
    "/rules/check": BOOK_FORM,
    "/rules/publish": BOOK_FORM,
    "/rules/rollback": {"to": "1", "base": "1", "note": "n"},
    "/login": {"user": "ann", "token": TOKEN, "next": "/dashboard/rules"},
}
QUERIES = {
    "/rule": {"name": "buy", "span": "hour"},
    "/rule/series": {"name": "buy", "span": "day"},
    "/rule/keys": {"name": "buy"},
    "/key": {"rule": "buy", "key": "user=bob"},
    "/rules/version": {"number": "1"},
    "/audit": {"find": "bob", "from": "0"},
    "/login": {"next": "/dashboard/"},
    "/": {"lang": "zh"},
}


def mutated(choose: random.Random, fields: dict[str, str]) -> dict[str, str]:
    names = list(fields)
    return fields | {choose.choice(names): choose.choice(TEXTS) for _ in range(choose.choice((0, 1, 1, 2)))}


def random_path(choose: random.Random) -> str:
    path = "/dashboard" + choose.choice(PATHS)
    if choose.random() < 0.2:  # beside the dashboard is the admin API
        path = choose.choice(
            ("/rules", "/rules/history/²", "/rules/history/9", "/stats", "/keys", "/peek", "/status")
        )
    if choose.random() < 0.05:
        path += "/" + quote(choose.choice(TEXTS))
    if choose.random() < 0.6:
        query = {choose.choice(FIELDS): choose.choice(TEXTS) for _ in range(choose.randrange(5))}
        path += "?" + (urlencode(query) if choose.random() < 0.9 else "%ff=%zz&&=;")
    return path


def random_body(choose: random.Random, token: str) -> bytes:
    fields = {choose.choice(FIELDS): choose.choice(TEXTS) for _ in range(choose.randrange(9))}
    if choose.random() < 0.9:
        fields["form"] = token
    if choose.random() < 0.2:
        return json.dumps(fields).encode()
    if choose.random() < 0.1:
        return choose.randbytes(choose.randrange(200))
    return urlencode(fields).encode()


def random_headers(choose: random.Random) -> dict[str, str]:
    headers = {choose.choice(HEADERS): choose.choice(VALUES) for _ in range(choose.choice((0, 0, 1, 2, 4)))}
    if choose.random() < 0.3:
        headers["content-type"] = "application/json"
    if choose.random() < 0.1:  # the HTTP server lets no other text pass
        headers["content-length"] = choose.choice(("0", "00000", "300", "70000", "9" * 19))
    return headers


async def test_no_request_is_answered_by_a_defect() -> None:
    choose = random.Random(SEED)
    problems: list[str] = []
    async with Site(BOOK) as site:
        site.site.dashboard._charge = lambda *_: None  # type: ignore[method-assign]
        users = [Visitor(site, "192.0.2.1"), Visitor(site, "192.0.2.2"), Visitor(site, "192.0.2.3")]
        await users[0].log_in()
        await users[1].log_in(VIEWER_TOKEN, "vera")
        await site.site.staged._store.lock("a service")
        tokens = [(await user.get("/dashboard/audit")).form_token for user in users[:2]] + [""]
        cookies = [dict(user.cookies) for user in users]
        for _ in range(REQUESTS):
            index = choose.choice((0, 0, 0, 1, 2))
            user, token = users[index], tokens[index]
            user._address = f"192.0.{choose.randrange(256)}.{choose.randrange(256)}"  # against limits of addresses
            user.cookies = dict(cookies[index])
            if choose.random() < 0.1:
                user.cookies[choose.choice(TEXTS)] = choose.choice(VALUES)
            method = choose.choice(("GET", "POST", "POST", "PUT", "DELETE", "HEAD"))
            path, body, headers = random_path(choose), random_body(choose, token), random_headers(choose)
            kind = choose.random()
            if kind < 0.4:
                method, form = "POST", choose.choice(list(FORMS))
                path, body = (
                    f"/dashboard{form}",
                    urlencode(mutated(choose, FORMS[form]) | {"form": token}).encode(),
                )
                headers = headers if kind < 0.1 else {}
            elif kind < 0.6:
                method, form = "GET", choose.choice(list(QUERIES))
                path = f"/dashboard{form}?{urlencode(mutated(choose, QUERIES[form]))}"
            if path.startswith("/dashboard/live"):
                continue  # it never ends
            if path.startswith("/dashboard/rules/preview") and choose.random() < 0.9:
                continue  # each starts a process
            page = await user.send_request(method, path, body, headers)
            if page.status >= 500 or (not page.text and page.status not in (200, 303)):
                problems.append(f"{page.status} {method} {path} {headers} {body[:200]!r}")
            if path.startswith("/dashboard") and "default-src 'none'" not in str(
                page.field("content-security-policy")
            ):
                problems.append(f"no policy: {method} {path}")
    assert problems == []
