"""Limits any WSGI application: Bottle, Pyramid, Falcon, or one without a framework.

    app = WSGIRateLimitMiddleware(app, rules="rules.yaml", engine="redis://localhost:6379/0")

It wraps the whole application, so that every response to a request that a limit decided has the header fields. An
exception that the application does not handle is logged and answered with a 500 that has them, if nothing was sent
yet. A debugger or test client
that wants the exception (environ["x-wsgiorg.throw_errors"], Werkzeug's with its console) gets it instead.

Functions (user, attributes, key, cost, exempt) receive the environ. An application reads the RequestRecord at
environ["headgate"]. A function that decides about refunds receives a WSGIResponseStart.

Costs are refunded or settled and slots released once the response is complete: when the last byte of its
Content-Length is produced, when the iterable is exhausted, or when the server closes it because the client went
away.

It is made of two, of which a framework's file may replace the second:
    WSGIRecordMiddleware     starts the record, adds the fields; refunds, settles and releases
    decide_first             decides the rulebook and the limits of the whole application, and answers refusals
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack
from urllib.parse import quote

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import Engine
from headgate.http.headers import Fields
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.request_limits import LimitSettings, RequestLimits
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.unreachable_limits import check_middleware_limits

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

RECORD = "headgate"  # its name in the environ

_WANTS_EXCEPTIONS = ("werkzeug.debug.preserve_context", "x-wsgiorg.throw_errors", "paste.throw_errors")
_UNRESERVED = "/:@!$&'()*+,;=~-._"
_LISTS = {"ratelimit", "ratelimit-policy"}
_INTERNAL_ERROR = b"Internal Server Error\n"

_log = logging.getLogger("headgate")

limit = CodeLimit


class WSGIResponseStart(NamedTuple):
    """The start of a response, as functions that decide about refunds receive it."""

    status: int
    headers: list[tuple[str, str]]


class WSGIRateLimitMiddleware:
    """Limits a WSGI application by a rulebook, by limits in code, or both; LimitSettings lists the settings."""

    def __init__(
        self,
        app: WSGIApplication,
        rules: Rules | None = None,
        engine: str | Engine = "memory://",
        **settings: Unpack[LimitSettings],
    ) -> None:
        self.limits: RequestLimits = RequestLimits(rules, engine, **settings)
        check_middleware_limits(self.limits.app_limits, self.limits.how_to_supply, params=())
        self._app = WSGIRecordMiddleware(decide_first(app, self.limits), self.limits)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._app(environ, start_response)

    def close(self) -> None:
        """Closes the engine."""
        self.limits.close()


def decide_first(app: WSGIApplication, limits: RequestLimits) -> WSGIApplication:
    """Returns an application that decides each request before it calls this one, and answers refusals."""

    def decide_then_call(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        record: RequestRecord = environ[RECORD]
        if limits.decide(record, limits.app_limits) is None:
            return app(environ, start_response)
        assert record.answer is not None
        status, headers, body = record.answer
        start_response(_status_line(status), [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return decide_then_call


class WSGIRecordMiddleware:
    """Starts the record of each request, adds the fields to its response, and finishes it.

    find_response       returns the framework's own response, for functions that decide about refunds
    is_complete         returns whether that response has all of its body already
    answer_exceptions   whether exceptions are answered; a framework does that itself
    """

    def __init__(
        self,
        app: WSGIApplication,
        limits: RequestLimits,
        find_response: Callable[[WSGIEnvironment, WSGIResponseStart], Any] | None = None,
        is_complete: Callable[[WSGIEnvironment], bool] | None = None,
        *,
        answer_exceptions: bool = True,
    ) -> None:
        self.app: WSGIApplication = app
        self.limits: RequestLimits = limits
        self.find_response: Callable[[WSGIEnvironment, WSGIResponseStart], Any] | None = find_response
        self.is_complete: Callable[[WSGIEnvironment], bool] | None = is_complete
        self.answer_exceptions: bool = answer_exceptions

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        record = environ[RECORD] = self.limits.begin(request_parts(environ))
        exchange = _Exchange(self, record, environ, start_response)
        try:
            body = self.app(environ, exchange.start)
        except BaseException as error:
            return [exchange.answer_exception(error)]
        if isinstance(body, list | tuple):
            record.bytes_sent += sum(map(len, body))
            exchange.finish()
            return body  # as it is: servers look at the length of a list
        if self.is_complete is not None and self.is_complete(environ) and not record.costs_after:
            exchange.finish()
            return body
        wrapper = environ.get("wsgi.file_wrapper")
        if not record.changes_counts and isinstance(wrapper, type) and isinstance(body, wrapper):
            exchange.finish()
            return body  # which the server may send without reading it here
        return _Body(body, exchange)


class _Exchange:
    """One request and its response, on their way through the middleware."""

    __slots__ = ("environ", "layer", "missing", "record", "response", "sent", "start_response")

    def __init__(
        self,
        layer: WSGIRecordMiddleware,
        record: RequestRecord,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> None:
        self.layer, self.record, self.environ, self.start_response = layer, record, environ, start_response
        self.response = WSGIResponseStart(500, [])  # unless the application sends another
        self.missing: int | None = None  # bytes that its Content-Length promises
        self.sent = False

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        """Starts the response, with the fields."""
        self.response = WSGIResponseStart(int(status[:3]), headers)
        self.missing = next((int(value) for name, value in headers if name.lower() == "content-length"), None)
        write = self.start_response(status, [*headers, *_absent(self.record.fields(), headers)], exc_info)

        def write_and_note(data: bytes) -> object:
            self.sent = True
            self.record.bytes_sent += len(data)
            return write(data)

        return write_and_note

    def answer_exception(self, error: BaseException) -> bytes:
        """Starts a 500 with the fields and returns its body; raises the exception where it cannot."""
        try:
            wanted = not self.layer.answer_exceptions or any(map(self.environ.get, _WANTS_EXCEPTIONS))
            if self.sent or wanted or not isinstance(error, Exception):
                self.response = WSGIResponseStart(500, [])
                raise error
            _log.error("headgate: the application raised an exception, which was answered 500", exc_info=error)
            head = [("Content-Type", "text/plain"), ("Content-Length", str(len(_INTERNAL_ERROR)))]
            self.start(_status_line(500), head, (type(error), error, error.__traceback__))
            return b"" if self.environ["REQUEST_METHOD"] == "HEAD" else _INTERNAL_ERROR
        finally:
            self.finish()

    @property
    def unfinished(self) -> bool:
        """Returns whether something is to be refunded, settled or released."""
        return self.record.unfinished

    def finish(self) -> None:
        """Refunds, settles and releases; does nothing when it is called again."""
        if self.unfinished:
            find, response = self.layer.find_response, self.response
            native = response if find is None else find(self.environ, response)
            self.layer.limits.finish(self.record, response.status, native)


class _Body:
    """The body of a response, which finishes the request once it is complete."""

    __slots__ = ("_exchange", "_iterable", "_iterator")

    def __init__(self, iterable: Iterable[bytes], exchange: _Exchange) -> None:
        self._iterable, self._exchange = iterable, exchange
        self._iterator: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        exchange = self._exchange
        try:
            if self._iterator is None:
                self._iterator = iter(self._iterable)
            chunk = next(self._iterator)
        except StopIteration:
            exchange.finish()
            raise
        except BaseException as error:
            self._iterator = iter(())
            return exchange.answer_exception(error)
        if chunk:
            exchange.sent = True
            exchange.record.bytes_sent += len(chunk)
        if exchange.missing is not None:
            exchange.missing -= len(chunk)
            if exchange.missing <= 0:
                exchange.finish()
        return chunk

    def close(self) -> None:
        try:
            close = getattr(self._iterable, "close", None)
            if close is not None:
                close()
        finally:
            self._exchange.finish()


class _EnvironHeaders:
    """The header fields of a request, read from the environ when somebody asks for them."""

    __slots__ = ("_environ",)

    def __init__(self, environ: WSGIEnvironment) -> None:
        self._environ = environ

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for name, value in self._environ.items():
            if name.startswith("HTTP_"):
                yield name[5:].replace("_", "-"), value
            elif name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value:
                yield name.replace("_", "-"), value


def request_parts(environ: WSGIEnvironment, native: Any = None) -> RequestParts:
    """Describes a request by its environ. The path is the one that the application sees, encoded again."""
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return RequestParts(
        environ["REQUEST_METHOD"],
        quote(path.encode("latin-1"), safe=_UNRESERVED) or "/",
        environ.get("QUERY_STRING", ""),
        _EnvironHeaders(environ),
        environ.get("REMOTE_ADDR") or None,
        environ if native is None else native,
    )


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Refused"


def _absent(fields: Fields, present: Iterable[tuple[str, str]]) -> Fields:
    """Returns the fields to add. Lists may be repeated; of other fields, the application's own stays."""
    if not fields:
        return fields
    names = {name.lower() for name, _ in present} - _LISTS
    return [pair for pair in fields if pair[0].lower() not in names]
