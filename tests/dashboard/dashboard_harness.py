"""Visits the dashboard in this process, as a browser without scripts would: with cookies, forms and redirects."""

import re
from html import unescape
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote_plus, unquote, urlencode

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.asgi import Asgi
from headgate.service.dashboard.site import AdminSite
from headgate.service.settings import Settings
from headgate.service.worker import counts_of
from headgate.telemetry.memory_records import MemoryRecordsStore
from headgate.telemetry.recent_records import RecentRecords

TOKEN = "the operators' token 0123456789"
VIEWER_TOKEN = "the viewers' token 0123456789"
BOOK: dict[str, Any] = {
    "rules": [
        {
            "name": "buy",
            "when": {"path": "/buy"},
            "key": "user",
            "missing": "skip",
            "limit": "2/hour",
            "overrides": True,
        },
        {"name": "all", "key": "address", "missing": "skip", "limit": "1000/s"},
    ]
}


class VisitedPage(NamedTuple):
    """A response: its status, header fields and text."""

    status: int
    fields: list[tuple[str, str]]
    text: str

    def field(self, name: str) -> str | None:
        return next((value for each, value in self.fields if each == name), None)

    @property
    def words(self) -> str:
        """Returns what a reader sees."""
        return re.sub(r"\s+", " ", unescape(re.sub(r"<script.*?</script>|<[^>]*>", " ", self.text, flags=re.S)))

    @property
    def form_token(self) -> str:
        match = re.search(r'name="form" value="([^"]+)"', self.text)
        assert match is not None, self.words
        return match[1]


class Site:
    """A service's admin address, with a limiter in memory."""

    def __init__(self, book: Any = None, **settings: Any) -> None:
        settings = {"admin_token": TOKEN, "viewer_token": VIEWER_TOKEN, **settings}
        self.settings = Settings(**settings)
        self.counts = counts_of(self.settings)
        observers: list[Any] = [self.counts]
        self.records: MemoryRecordsStore | None = None
        if self.settings.engine.startswith("memory:"):
            self.records = MemoryRecordsStore()
            self.recent = RecentRecords(self.records)
            observers.append(self.recent)
        rules = self.settings.rules or (BOOK if book is None else book)
        self.limiter = AsyncRuleLimiter(rules, self.settings.engine, observers=observers)
        self.site = AdminSite(self.limiter, self.settings, self.counts, self.records)
        self.asgi = Asgi(self.site)

    async def buy(self, user: str, times: int = 1) -> list[bool]:
        """Buys something so many times; whether each call passed."""
        call = {"path": "/buy", "method": "POST", "user": user, "address": "192.0.2.7"}
        return [(await self.limiter.check(call)).allowed for _ in range(times)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.site.close()
        await self.limiter.close()


class Visitor:
    """Somebody at a browser: keeps cookies."""

    def __init__(self, site: Site, address: str = "192.0.2.1") -> None:
        self._site, self._address = site, address
        self.cookies: dict[str, str] = {}
        self.bodies_read = 0

    async def send_request(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> VisitedPage:
        """Sends one request."""
        fields = {"host": "headgate.test", **(headers or {})}
        if self.cookies:
            fields["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "client": (self._address, 4000),
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            self.bodies_read += 1
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._site.asgi(scope, receive, send)
        response_fields = [(name.decode().lower(), value.decode()) for name, value in sent[0]["headers"]]
        for name, value in response_fields:
            if name == "set-cookie":
                cookie, _, rest = value.partition("=")
                self.cookies[cookie] = rest.partition(";")[0]
        return VisitedPage(sent[0]["status"], response_fields, sent[1]["body"].decode())

    async def get(self, target: str, **headers: str) -> VisitedPage:
        return await self.send_request("GET", target, headers=headers)

    async def post(self, path: str, fields: dict[str, str], **headers: str) -> VisitedPage:
        return await self.send_request("POST", path, urlencode(fields).encode(), headers)

    async def log_in(self, token: str = TOKEN, user: str = "ann") -> VisitedPage:
        return await self.post("/dashboard/login", {"token": token, "user": user})

    async def send_form(self, page: VisitedPage, path: str, **fields: str) -> VisitedPage:
        """Sends a form of a page, and follows to where it leads."""
        answer = await self.post(path, {"form": page.form_token, **fields})
        if answer.status == 303:
            return await self.get(answer.field("location") or "")
        return answer


def key_path(rule: str, key: str) -> str:
    return f"/dashboard/key?rule={quote_plus(rule)}&key={quote_plus(key)}"
