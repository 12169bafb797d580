"""Calls the engine on a shared dict in a real nginx, over HTTP (driver.lua)."""

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from headgate.algorithms.limit import Limit
from headgate.engines.charge_options import ChargeOptions
from headgate.gateway.bundle import limit_entry
from tests.servers import DrivenClock, Nginx

DRIVER = Path(__file__).with_name("driver.lua")

_SERVER = """
  client_body_buffer_size 1m; client_max_body_size 1m;
  location = /call {{ content_by_lua_block {{ driver.respond() }} }}
  {more}
"""
_HTTP = """
  lua_shared_dict headgate {size};
  init_by_lua_block {{ driver = dofile("{driver}"); driver.init("headgate") {init} }}
"""


class WireOutcome(NamedTuple):
    """An outcome as the driver writes it: -1 is never, -3 is locked out."""

    allowed: int
    remaining: int
    retry_after_us: int
    reset_after_us: int
    delay_us: int
    at_us: int
    mark: int
    overflow: bool = False


class SharedDictError(Exception):
    """No decision; the text is `KIND SENTENCE`."""


_terms: dict[int, ChargeOptions] = {}  # one object for each rule, and an id of a dead one may come again


class SharedDictMeter(NamedTuple):
    """One limit under the name of its counts, on its terms."""

    limit: Limit
    name: str
    terms: ChargeOptions = ChargeOptions("plain")

    @property
    def fields(self) -> dict[str, Any]:
        limit = dict(limit_entry(self.limit))
        lockout = {} if self.terms.lockout is None else {"lockout": list(self.terms.lockout)}
        _terms[id(self.terms)] = self.terms
        terms = {"id": str(id(self.terms)), "rule": self.terms.rule, "aside": self.terms.is_shadow, **lockout}
        return {"id": f"{self.name} {limit} {id(self.terms)}", "name": self.name, "limit": limit, "terms": terms}


class SharedDictNginx:
    """An nginx with the engine in it. `hit` is a meter for GET /hit?key=..., which is charged one unit."""

    def __init__(
        self,
        *,
        driven: DrivenClock | None = None,
        workers: int = 1,
        size: str = "10m",
        hit: SharedDictMeter | None = None,
        more: str = "",
    ) -> None:
        self.clock = driven
        init = ""
        if hit is not None:
            entry = f"require('resty.headgate.rules.bundle_json').decode([==[{json.dumps(hit.fields)}]==])"
            init = f"driver.only = driver.bind({entry})"
            more += " location = /hit { content_by_lua_block { driver.hit() } }"
            more += " location = /hammer { content_by_lua_block { driver.hammer() } }"
            more += " location = /logged { content_by_lua_block { } log_by_lua_block { driver.logged() } }"
        self.nginx = Nginx(
            _SERVER.format(more=more),
            _HTTP.format(size=size, driver=DRIVER, init=init),
            workers=workers,
            driven=driven,
        )
        self._line: http.client.HTTPConnection | None = None
        self.worker = 0  # who answered last

    def at(self, now_us: int) -> None:
        assert self.clock is not None
        self.clock.set_us(now_us)

    def call_driver(self, verb: str, **args: Any) -> str:
        if self._line is None:
            self._line = http.client.HTTPConnection("127.0.0.1", self.nginx.port, timeout=30)
        try:
            self._line.request("POST", "/call", json.dumps({"verb": verb, **args}))
            answer = self._line.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            self.hang_up()
            raise
        assert answer.status == 200, (text, self.nginx.log[-3000:])
        self.worker = int(answer.headers["X-Worker"])
        if text.startswith("trouble "):
            raise SharedDictError(text.removeprefix("trouble "))
        return text

    def hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def decide(
        self,
        charges: Sequence[tuple[SharedDictMeter, str, int]],
        *,
        commit: bool = True,
        deadline: float = 5,
        busy: float = 0,
    ) -> list[WireOutcome]:
        """`busy`: seconds for which the worker computes first, while its cached clock stands still."""
        sent = [_charge(*charge) for charge in charges]
        text = self.call_driver("decide", charges=sent, commit=int(commit), deadline=deadline, busy=busy)
        return [wire_outcome(line) for line in text.split("\n")]

    def take(self, meter: SharedDictMeter, key: str = "key", cost: int = 1) -> WireOutcome:
        return self.decide([(meter, key, cost)])[0]

    def refund(self, meter: SharedDictMeter, key: str, cost: int, taken: WireOutcome) -> WireOutcome:
        receipt = " ".join(map(str, taken[:7])) + (" overflow" if taken.overflow else "")
        return wire_outcome(self.call_driver("refund", charge=_charge(meter, key, cost), outcome=receipt))

    def acquire(self, meter: SharedDictMeter, key: str = "key", busy: float = 0) -> WireOutcome:
        return wire_outcome(self.call_driver("acquire", charge=_charge(meter, key, 1), busy=busy))

    def renew(self, meter: SharedDictMeter, fence: int, key: str = "key") -> bool:
        return self.call_driver("renew", charge=_charge(meter, key, 1), fence=fence) == "true"

    def release(self, meter: SharedDictMeter, fence: int, key: str = "key") -> bool:
        return self.call_driver("release", charge=_charge(meter, key, 1), fence=fence) == "true"

    def forget(self, meter: SharedDictMeter, key: str) -> None:
        self.call_driver("forget", bound_limit=meter.fields, key=key)

    def use(self, *meters: SharedDictMeter, zones: dict[str, Any] | None = None) -> None:
        self.call_driver("use", bound_limits=[meter.fields for meter in meters], zones=zones or {})

    def names(self) -> list[str]:
        return self.call_driver("keys").split()

    def entry(self, name: str) -> tuple[int, int]:
        """The bytes of an entry, and how many milliseconds it will live."""
        size, ttl_ms = self.call_driver("entry", name=name).split()
        return int(size), int(ttl_ms)

    def __enter__(self) -> Self:
        self.nginx.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
        self.nginx.stop()


def wire_outcome(line: str) -> WireOutcome:
    words = line.split()
    return WireOutcome._make([*map(int, words[:7]), words[7:] == ["overflow"]])


def _charge(meter: SharedDictMeter, key: str, cost: int) -> dict[str, Any]:
    return {"bound_limit": meter.fields, "key": key, "cost": cost}
