"""The dashboard application: finds the page of a request, and lets only those in who may see or change it.

Laws (tests/dashboard/test_access.py):
  - without a session every path but the login and static files leads to the login, and reads and does nothing;
  - a request that changes something needs an operator, the form token of its session and our own origin; all three
    are checked before its form is parsed;
  - a form has at most 64 KiB; the rulebook and a log, at three paths, have bounds of their own;
  - no page has code or style of its own, and each says so in its content security policy;
  - from one address (one network of IPv6) a worker answers 100 requests at once and 40 a second; each 256 KiB
    of a large form count as one more, and the page of a key as five.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from headgate.algorithms.decision import ALLOWED
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import EngineUnavailable, HeadgateError
from headgate.http.client_ip import UNIX
from headgate.limit_syntax import parse
from headgate.service.admin.app import Admin, rate_limit_key
from headgate.service.admin.audit_log import log_failure, log_wrong_token
from headgate.service.admin.request import UnpublishableRulebook
from headgate.service.asgi import (
    AnyResponse,
    Handler,
    HttpError,
    Request,
    Response,
    StreamedResponse,
    encode_headers,
)
from headgate.service.dashboard.audit_page import AuditPage
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.dashboard.html import html
from headgate.service.dashboard.key_page import KeyPage
from headgate.service.dashboard.login_page import login_page
from headgate.service.dashboard.number_page import NumberPage
from headgate.service.dashboard.operator_actions import OperatorActions
from headgate.service.dashboard.overview_page import OverviewPage
from headgate.service.dashboard.page_layout import ROOT, THEMES, View
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.playground_page import PlaygroundPage
from headgate.service.dashboard.request import (
    FORM_TOKEN_HEADER,
    SAFE_FIELDS,
    SMALL_FORM_BYTES,
    content_length,
    cookies_of,
    form_of,
    form_token_of,
    is_foreign,
    json_response,
    page_response,
    query_of,
    redirect,
    set_cookie,
)
from headgate.service.dashboard.rule_page import RulePage
from headgate.service.dashboard.rulebook_page import RulebookPage
from headgate.service.dashboard.sessions import (
    COOKIE,
    OPERATOR,
    SESSION_S,
    VIEWER,
    Session,
    Sessions,
    user_name,
)
from headgate.service.dashboard.translation import choose_language
from headgate.service.dashboard.upload_lock import UploadLock
from headgate.service.settings import Settings
from headgate.service.staged_enforcement import StagedEnforcement
from headgate.service.token_guesses import TooManyGuesses

REQUEST_LIMIT: Final = "40/s burst 100"
# A rulebook has up to 4 MiB and a log 8 MB; escaped, they are longer. Viewers only try what they see.
LARGE_FORM_BYTES: Final = {
    f"{ROOT}/rules/check": 8 * 1024 * 1024,
    f"{ROOT}/rules/preview": 16 * 1024 * 1024,
    f"{ROOT}/rules/publish": 8 * 1024 * 1024,
}
VIEWER_FORM_BYTES: Final = 1024 * 1024
COSTLY_PATHS: Final = {f"{ROOT}/key": 5}  # in the limit of requests: it reads 20,000 recent records
_BYTES_PER_UNIT: Final = 256 * 1024  # of a large form, in the limit of requests
_LANGUAGE, _THEME = "headgate_language", "headgate_theme"
_YEAR_S: Final = 365 * 86_400
_TYPES: Final = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_static_path = re.compile(r"((?:vendor/)?[A-Za-z][\w.-]{0,60}\.(js|css|svg))", re.ASCII)

PageHandler = Callable[[PageRequest], Awaitable[AnyResponse]]


class Dashboard:
    """The pages, at /dashboard."""

    def __init__(
        self,
        limiter: AsyncRuleLimiter,
        settings: Settings,
        admin: Admin,
        sources: DashboardSources,
        staged: StagedEnforcement,
    ) -> None:
        self._settings, self._sources = settings, sources
        self._sessions = Sessions(settings.admin_token, settings.viewer_token, admin.guesses)
        self._rate_limit = MemoryEngine().meter(parse(REQUEST_LIMIT), "dashboard")
        self._large_forms = asyncio.Lock()
        self.actions: OperatorActions = OperatorActions(admin.handlers, limiter, sources.availability)
        actions = self.actions
        overview = OverviewPage(limiter, sources)
        rule, key = RulePage(limiter, sources, actions, staged), KeyPage(limiter, sources, actions)
        book, audit = RulebookPage(limiter, sources, actions), AuditPage(sources, actions)
        self._number = NumberPage(sources, actions, book, UploadLock(settings.admin))
        playground = PlaygroundPage()
        self._routes: tuple[tuple[str, re.Pattern[str], PageHandler], ...] = tuple(
            (method, re.compile(ROOT + path), handler)
            for method, path, handler in (
                ("GET", r"/?", overview.show),
                ("GET", r"/live", overview.stream),
                ("GET", r"/overview/rules", overview.rules),
                ("GET", r"/overview/nodes", overview.nodes),
                ("GET", r"/rule", rule.show),
                ("GET", r"/rule/series", rule.series),
                ("GET", r"/rule/keys", rule.keys),
                ("GET", r"/rule/stages", rule.stages),
                ("POST", r"/rule/stages/(?P<action>start|stop)", rule.change_stages),
                ("GET", r"/key", key.show),
                ("GET", r"/key/facts", key.facts),
                ("POST", r"/key/(?P<action>override|unset|block|exempt|reset)", key.act),
                ("POST", r"/undo", key.undo),
                ("GET", r"/rules", book.show),
                ("POST", r"/rules/check", book.check),
                ("POST", r"/rules/preview", book.preview),
                ("POST", r"/rules/publish", book.publish),
                ("POST", r"/rules/rollback", book.roll_back),
                ("GET", r"/rules/version", book.version),
                ("GET", r"/audit", audit.show),
                ("GET", r"/number", self._number.show),
                ("POST", r"/number/check", self._number.check),
                ("POST", r"/number/upload", self._number.upload),
                ("POST", r"/number/shadow", self._number.save),
                ("GET", r"/playground", playground.show),
                ("POST", r"/playground", playground.play),
                ("POST", r"/logout", self._log_out),
            )
        )

    def serves(self, path: str) -> bool:
        """Returns whether a path belongs to the dashboard."""
        return path in ("/", ROOT) or path.startswith(f"{ROOT}/")

    def route(self, request: Request) -> tuple[int | None, Handler]:
        """Finds the handler of a request, for a user who may use it."""
        if request.path == "/":
            return None, lambda _: redirect(f"{ROOT}/")
        if request.path.startswith(f"{ROOT}/static/"):
            return None, partial(_static, request.path.removeprefix(f"{ROOT}/static/"))
        self._charge(request, COSTLY_PATHS.get(request.path, 1))
        session = self._session(request)
        if request.path == f"{ROOT}/login" and request.method in ("GET", "POST"):
            is_post = request.method == "POST"
            return (SMALL_FORM_BYTES if is_post else None), self._log_in if is_post else self._show_login
        if session is None:
            if request.method != "GET" or request.field(b"x-requested-with"):
                raise HttpError(401, "You are not logged in any more. Log in again, in another tab if you like.")
            here = request.path + (f"?{request.query}" if request.query else "")
            here = quote(here.encode("utf-8", "replace"), safe="/")
            return None, lambda _: redirect(f"{ROOT}/login" + ("" if here == f"{ROOT}/" else f"?next={here}"))
        for method, pattern, handler in self._routes:
            if method == request.method and (match := pattern.fullmatch(request.path)):
                max_bytes = None
                if method == "POST":
                    self._check_change(request, session, request.path)
                    reads_body = handler == self._number.upload
                    max_bytes = None if reads_body else self._admit_form(request, session)
                return max_bytes, partial(self._respond, handler, session, match.groupdict())
        raise HttpError(404, "There is no such page.")

    def _session(self, request: Request) -> Session | None:
        """Returns the session of a request: of its cookie, or of the user whom a trusted proxy names."""
        header = self._settings.dashboard_user_header
        if header:
            named = [value for name, value in request.headers if name == header.encode()]
            peer = request.peer or UNIX
            if len(named) == 1 and self._settings.trusted.behind(peer, None) is not None:
                user = user_name(named[0].decode("utf-8", "replace"))
                return Session(user, OPERATOR if user in self._settings.dashboard_operators else VIEWER, "proxy")
        for cookie in cookies_of(request, COOKIE):  # another site of this host may have set one of this name
            if session := self._sessions.read(cookie):
                return session
        return None

    def _charge(self, request: Request, units: int) -> None:
        if not self._rate_limit.decide(rate_limit_key(request.client), units)[ALLOWED]:
            raise HttpError(429, f"At most {REQUEST_LIMIT} from one address.", [("retry-after", "1")])

    def _admit_form(self, request: Request, session: Session) -> int:
        """Returns how large the form may be; charges for one that is large."""
        large = LARGE_FORM_BYTES.get(request.path, SMALL_FORM_BYTES)
        max_bytes = large if session.is_operator else min(large, VIEWER_FORM_BYTES)
        announced = content_length(request)
        if announced <= SMALL_FORM_BYTES:
            return SMALL_FORM_BYTES
        self._charge(request, min(announced, max_bytes) // _BYTES_PER_UNIT)
        return max_bytes

    def _check_change(self, request: Request, session: Session, path: str) -> None:
        """Raises HttpError unless a request comes from our own page, by somebody who may change something."""
        if is_foreign(request):
            raise HttpError(403, "This form comes from another site. Nothing was changed.")
        if request.field(FORM_TOKEN_HEADER) is not None:
            self._check_form_token(request, session)
        if not session.is_operator and path not in (
            f"{ROOT}/logout",
            f"{ROOT}/rules/check",
            f"{ROOT}/rules/preview",
            f"{ROOT}/playground",
        ):
            raise HttpError(
                403, "You may look, and not change anything. Log in as an operator. Nothing was changed."
            )

    async def _respond(
        self, handler: PageHandler, session: Session, path: dict[str, str], request: Request
    ) -> AnyResponse:
        form: dict[str, str] = {}
        if request.method == "POST":
            self._check_form_token(request, session)
            if len(request.body) <= SMALL_FORM_BYTES:
                form = form_of(request)
            else:
                async with self._large_forms:  # one at a time, in a thread: calls are decided meanwhile
                    form = await asyncio.to_thread(form_of, request)
        query = query_of(request)
        await self._sources.availability.probe()
        view = self._view(request, session, query)
        is_secure = self._is_secure(request)
        page = PageRequest(view, session, path, query, form, request.client or UNIX, request, is_secure)
        response = await handler(page)
        if "lang" in query and not isinstance(response, StreamedResponse):
            cookie = set_cookie(_LANGUAGE, view.language, _YEAR_S, secure=is_secure)
            response[1].extend(encode_headers([cookie]))
        return response

    def _check_form_token(self, request: Request, session: Session) -> None:
        if not self._sessions.is_form_token(session, form_token_of(request)):
            raise HttpError(403, "This form is not of this session. Load the page again. Nothing was changed.")

    def _view(self, request: Request, session: Session | None, query: dict[str, str]) -> View:
        languages, themes = cookies_of(request, _LANGUAGE), cookies_of(request, _THEME)
        wanted = query.get("lang") or (languages[0] if languages else None)
        theme = themes[0] if themes else "auto"
        return View(
            session,
            self._sessions.form_token(session) if session else "",
            choose_language(wanted, request.field(b"accept-language")),
            theme if theme in THEMES else "auto",
            request.path,
            query,
            self._sources.availability.problem,
        )

    def _is_secure(self, request: Request) -> bool:
        """Returns whether the browser came by TLS: to us, or to a trusted proxy that says so."""
        if self._settings.tls_cert is not None:
            return True
        scheme = (request.field(b"x-forwarded-proto") or "").strip().lower()
        return scheme == "https" and self._settings.trusted.behind(request.peer or UNIX, None) is not None

    async def _show_login(self, request: Request) -> Response:
        query = query_of(request)
        return page_response(login_page(self._view(request, None, query), query.get("next", "")))

    async def _log_in(self, request: Request) -> Response:
        form = form_of(request)
        view = self._view(request, None, {})
        target, user, problem = form.get("next", ""), form.get("user", ""), "This token is not valid."
        try:
            if is_foreign(request):
                raise HttpError(403, "This form comes from another site.")
            user_name(user)
            session = self._sessions.log_in(form.get("token", ""), user, rate_limit_key(request.client))
        except TooManyGuesses as error:
            page = login_page(view, target, user, str(error))
            return page_response(page, 429, [("retry-after", str(int(error.retry_after) + 1))])
        except (HttpError, HeadgateError) as error:
            status = error.status if isinstance(error, HttpError) else 400
            return page_response(login_page(view, target, user, str(error)), status)
        if session is None:
            log_wrong_token(request.client or UNIX)
            return page_response(login_page(view, target, user, view.t(problem)), 401)
        cookie = set_cookie(COOKIE, self._sessions.cookie(session), SESSION_S, secure=self._is_secure(request))
        ours = target.startswith(f"{ROOT}/") and "\\" not in target and "\n" not in target and "\r" not in target
        return redirect(quote(target, safe="/?=&%:") if ours else f"{ROOT}/", [cookie])

    async def _log_out(self, page: PageRequest) -> Response:
        return redirect(f"{ROOT}/login", [set_cookie(COOKIE, "", 0, secure=page.is_secure)])

    def error_response(self, request: Request, error: Exception) -> Response:
        """Returns the response to a request whose handler raised an error: a page, or JSON for a script."""
        status, fields, problems = 500, [], []
        text = "This is a defect of the service. Its log says more: please report that."
        match error:
            case HttpError():
                status, text, fields = error.status, error.detail, error.fields
            case UnpublishableRulebook():
                status, text = 400, str(error)
                problems = [{"line": each.line, "problem": each.problem} for each in error.problems]
            case EngineUnavailable():
                status, text = 503, str(error)
            case HeadgateError():
                status, text = 400, str(error)
            case _:
                log_failure(f"{request.method} {request.path[:200]!r}", error)
        if request.field(b"x-requested-with"):
            return json_response({"error": text, "problems": problems}, status)
        session = None
        try:
            session = self._session(request)
        except HeadgateError:
            status, text = 400, "The proxy's name of the user is not a name."
        view = self._view(request, session, {})
        body = html(
            '<section class="card error"><h1>{title}</h1><p>{text}</p>'
            '<p><a href="{root}/">{back}</a></p></section>',
            title=view.t("This did not work"),
            text=text,
            root=ROOT,
            back=view.t("Overview"),
        )
        return page_response(view.page(view.t("This did not work"), body), status, fields)

    async def close(self) -> None:
        """Ends all live streams and uploads, and closes connections."""
        await self._number.close()
        await self._sources.close()


def _static(name: str, request: Request) -> Response:
    """Returns a static file; its name has the version behind it, so browsers may keep it."""
    match = _static_path.fullmatch(name) if request.method == "GET" else None
    file = files("headgate.service.dashboard") / "static" / (name if match else "")
    if match is None or not file.is_file():
        raise HttpError(404, "There is no such file.")
    headers = [("content-type", f"{_TYPES[match[2]]}; charset=utf-8"), ("cache-control", "public, max-age=3600")]
    return 200, encode_headers([*headers, *SAFE_FIELDS]), file.read_bytes()
