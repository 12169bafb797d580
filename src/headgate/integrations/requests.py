"""An adapter for requests that waits its turn across all processes, and pauses all of them after a 429.

    limiter = Limiter("10/s", "redis://localhost:6379/0", name="partner", pausable=True)
    session = requests.Session()
    session.mount("https://api.partner.example/", LimitedAdapter(limiter))

outbound.py describes a call. A call whose turn would come after `max_wait` raises RateLimited. A call is sent
again only if its body is known as a whole: not a file or a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from headgate.adaptive.window import LimitAlgorithm
from headgate.errors import InvalidSetting
from headgate.extras import require
from headgate.flow import run
from headgate.http.upstream_limits import SLOW_BELOW
from headgate.integrations.outbound import OutboundCalls
from headgate.integrations.unknown_settings import reject_unknown
from headgate.limiter import Limiter

require("headgate.integrations.requests", "requests", "requests")

import requests  # noqa: E402
from requests.adapters import HTTPAdapter  # noqa: E402

_DROPS = (requests.exceptions.Timeout,)
_SETTINGS = ("adaptive", "key", "cost", "max_wait", "retries", "slow_below")
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
        limiter: Limiter | None = None,
        *,
        adaptive: LimitAlgorithm[Any] | None = None,
        key: str | Callable[[requests.PreparedRequest], str] | None = None,
        cost: int | Callable[[requests.PreparedRequest], int] = 1,
        max_wait: float | None = None,
        retries: int = 0,
        slow_below: float = SLOW_BELOW,
        **adapter_options: Any,
    ) -> None:
        if "timeout" in adapter_options:
            raise InvalidSetting(
                "timeout= is no option of an adapter: requests takes it with each call, for the response. Write "
                f"max_wait={adapter_options['timeout']!r} for the wait for a turn."
            )
        reject_unknown(adapter_options, (*_SETTINGS, *_ADAPTER_OPTIONS), "this client")
        super().__init__(**adapter_options)
        self._calls: OutboundCalls[requests.PreparedRequest, requests.Response] = OutboundCalls(
            limiter,
            awaited=False,
            host_of=_host_of,
            answer_of=_answer_of,
            adaptive=adaptive,
            key=key,
            cost=cost,
            timeout=max_wait,
            retries=retries,
            slow_below=slow_below,
        )

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """Waits for a turn, sends the request, and pauses if the response says so."""

        def send() -> requests.Response:
            return HTTPAdapter.send(self, request, *args, **kwargs)

        can_repeat = request.body is None or isinstance(request.body, str | bytes)
        return run(self._calls.call(request, send, requests.Response.close, can_repeat, _DROPS))


def _host_of(request: requests.PreparedRequest) -> str:
    return urlsplit(request.url or "").netloc


def _answer_of(response: requests.Response) -> tuple[int, Iterable[tuple[str, str]]]:
    return response.status_code, response.headers.items()
