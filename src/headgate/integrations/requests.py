"""An adapter for requests that waits its turn across all processes, and pauses all of them after a 429.

    limiter = Limiter("10/s", "redis://localhost:6379/0", name="partner", pausable=True)
    session = requests.Session()
    session.mount("https://api.partner.example/", LimitedAdapter(limiter))
    # or Limiter.from_rules("partners.yaml", ...)

outbound.py describes a call. A call whose turn would come after `max_wait` raises RateLimited. A call is sent
again only if its body is known as a whole: not a file or a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from headgate.adaptive.window import LimitAlgorithm
from headgate.enforcement.adaptive_rules import DROPPED, IGNORED, SUCCESS
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.errors import InvalidSetting
from headgate.extras import require
from headgate.flow import run
from headgate.http.upstream_limits import SLOW_BELOW
from headgate.integrations.outbound import Fields, OutboundCalls, OutboundSettings
from headgate.integrations.outbound_turns import Turn
from headgate.integrations.unknown_settings import reject_unknown
from headgate.limiter import Limiter

require("headgate.integrations.requests", "requests", "requests")

import requests  # noqa: E402
from requests.adapters import HTTPAdapter  # noqa: E402

_DROPS = (
    *(requests.exceptions.Timeout, requests.exceptions.ConnectionError),
    requests.exceptions.ChunkedEncodingError,  # a connection that broke in a body
)
_SETTINGS = ("adaptive", "key", "cost", "max_wait", "retries", "slow_below", "attributes")
_ADAPTER_OPTIONS = [name for name in signature(HTTPAdapter.__init__).parameters if name != "self"]


class LimitedAdapter(HTTPAdapter):
    """An adapter of requests.Session: every request waits its turn. OutboundSettings lists the settings.

    max_wait        seconds that a call waits for its turn at most (`timeout` of the other clients)
    adapter_options those of HTTPAdapter, such as pool_maxsize=20

    >>> session = requests.Session()
    >>> session.mount("https://api.partner.example/", LimitedAdapter(Limiter("10/s", pausable=True), retries=2))
    """

    def __init__(
        self,
        limiter: Limiter | RuleLimiter | None = None,
        *,
        adaptive: LimitAlgorithm[Any] | None = None,
        key: str | Callable[[requests.PreparedRequest], str] | None = None,
        cost: int | Callable[[requests.PreparedRequest], int] | None = None,
        max_wait: float | None = None,
        retries: int = 0,
        slow_below: float = SLOW_BELOW,
        attributes: Callable[[requests.PreparedRequest], Mapping[str, Any]] | None = None,
        **adapter_options: Any,
    ) -> None:
        if "timeout" in adapter_options:
            raise InvalidSetting(
                "timeout= is no option of an adapter: requests takes it with each call, for the response. Write "
                f"max_wait={adapter_options['timeout']!r} for the wait for a turn."
            )
        reject_unknown(adapter_options, (*_SETTINGS, *_ADAPTER_OPTIONS), "this client")
        super().__init__(**adapter_options)
        settings: OutboundSettings[requests.PreparedRequest] = {
            "adaptive": adaptive,
            "key": key,
            "timeout": max_wait,
            "retries": retries,
            "slow_below": slow_below,
            "attributes": attributes,
        }
        if cost is not None:
            settings["cost"] = cost
        self._calls: OutboundCalls[requests.PreparedRequest, requests.Response] = OutboundCalls(
            limiter,
            awaited=False,
            host_of=_host_of,
            parts_of=_parts_of,
            answer_of=_answer_of,
            watch_body=_watch_body,
            drops=_DROPS,
            **settings,
        )

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """Waits for a turn, sends the request, and pauses if the response says so."""

        def send() -> requests.Response:
            return HTTPAdapter.send(self, request, *args, **kwargs)

        can_repeat = request.body is None or isinstance(request.body, str | bytes)
        return run(self._calls.call(request, send, requests.Response.close, can_repeat))


def _host_of(request: requests.PreparedRequest) -> str:
    return urlsplit(request.url or "").netloc


def _parts_of(request: requests.PreparedRequest) -> tuple[str, str, Fields]:
    return request.method or "", request.path_url, request.headers.items()


def _answer_of(response: requests.Response) -> tuple[int, Fields]:
    return response.status_code, response.headers.items()


def _watch_body(response: requests.Response, turn: Turn) -> None:
    """Ends the turn when the body has been read, cannot be, or is closed. `content`, `text`, `json` and
    `iter_lines` all read by `iter_content`."""
    read, close = response.iter_content, response.close

    def iter_content(*args: Any, **options: Any) -> Iterator[Any]:
        chunks = read(*args, **options)

        def watched() -> Iterator[Any]:
            try:
                yield from chunks
            except BaseException as error:
                turn.end(DROPPED if isinstance(error, _DROPS) else IGNORED)
                raise
            turn.end(SUCCESS)

        return watched()

    def close_and_end() -> None:
        turn.end(IGNORED)
        close()

    response.iter_content = iter_content  # type: ignore[method-assign]
    response.close = close_and_end  # type: ignore[method-assign]
