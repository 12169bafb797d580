"""Runs an nginx of two workers with the prefetch engine on a real Redis (prefetch_driver.lua), and clients that
call it.
"""

import contextlib
import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse
from tests.nginx.engines.redis.redis_harness import limit_bundle
from tests.servers import Nginx, RedisServer

DRIVER = Path(__file__).with_name("prefetch_driver.lua")
HTTP = """
lua_shared_dict headgate {room};
lua_shared_dict totals 1m;
init_by_lua_block {{
  package.loaded.prefetching = dofile("{lua}")
  package.loaded.prefetching.init("{settings}")
}}
"""
SERVER = """
location / {
  client_body_buffer_size 1m;
  content_by_lua_block { package.loaded.prefetching.serve() }
}
"""
HOLD_US = 200_000
LATE = 2.0  # seconds that a busy machine may be late


class PrefetchRule(NamedTuple):
    limit: str
    hold_us: int = HOLD_US
    units: int | None = None
    terms: Mapping[str, Any] = {}


class PrefetchFloodResult(NamedTuple):
    """The totals of a flood over all workers of an nginx. All are units, except calls, refused and troubles."""

    calls: int = 0
    admitted: int = 0
    prefetched: int = 0
    refused: int = 0
    returned: int = 0
    troubles: int = 0
    late: int = 0  # handed out after the end of the window that they were charged to


class PrefetchNginx(Nginx):
    """An nginx of two workers with a lease engine."""

    def __init__(self, redis: str, rules: Mapping[str, PrefetchRule], room: str = "2m") -> None:
        super().__init__(SERVER, workers=2)
        self.rules = rules
        settings_file = self.folder / "settings.json"
        limits = [parse(rule.limit) for rule in rules.values()]
        made = limit_bundle(limits, lockouts=True)
        counts = {}
        for (name, rule), limit in zip(rules.items(), limits, strict=True):
            prefetch = {"hold_us": rule.hold_us} | ({} if rule.units is None else {"units": rule.units})
            counts[name] = {"limit": limit.text, "terms": {"prefetch": prefetch, **rule.terms}}
        settings_file.write_text(json.dumps({"url": redis, "rules": counts, **made._asdict()}))
        self.configure(http=HTTP.format(room=room, lua=DRIVER, settings=settings_file))

    def do(self, verb: str, **args: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/", json.dumps({"verb": verb, **args}))
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, self.log
            return json.loads(body)
        finally:
            connection.close()

    def take(self, rule: str, **args: Any) -> Any:
        return self.do("take", rule=rule, key="ada", **args)

    def totals(self) -> PrefetchFloodResult:
        totals = self.do("totals")
        return PrefetchFloodResult(**{name: round(value) for name, value in (totals or {}).items()})


class PrefetchFlood:
    """Callers of one or several nginx, all at once; both workers of each are among those who answer."""

    def __init__(self, kiosks: list[PrefetchNginx], rule: str, each: int = 6, **args: Any) -> None:
        request = {"rule": rule, "key": "ada", "seconds": 1.0, "pause": 0.002, **args}
        self._kiosks = kiosks
        self._pool = ThreadPoolExecutor(each * len(kiosks))
        self._calls: list[Future[Any]] = [
            self._pool.submit(nginx.do, "flood", **request) for nginx in kiosks for _ in range(each)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def marks(self) -> Counter[int]:
        """Admitted units by the mark of their outcome."""
        units_by_mark: Counter[int] = Counter()
        for call in self._calls:
            marks = call.result()["marks"]
            units_by_mark.update({int(mark): units for mark, units in marks.items()})
        return units_by_mark

    def end(self) -> PrefetchFloodResult:
        self.marks()
        each = [nginx.totals() for nginx in self._kiosks]
        return PrefetchFloodResult(*map(sum, zip(*each, strict=True)))


@contextlib.contextmanager
def start_prefetch_nginx(
    server: RedisServer, rules: Mapping[str, PrefetchRule], count: int = 2, room: str = "2m"
) -> Iterator[list[PrefetchNginx]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(PrefetchNginx(server.url, rules, room)) for _ in range(count)]


def charged_units(server: RedisServer, rule: str, limit: str, key: str = "ada") -> int:
    """Units that are charged to the key, as any other process finds them."""
    engine = RedisEngine(server.url)
    try:
        meter = engine.meter(parse(limit), rule)
        return meter.decide("nobody", 0)[1] - meter.decide(key, 0)[1]
    finally:
        engine.close()


def await_charged_units(server: RedisServer, rule: str, limit: str, units: int, key: str = "ada") -> int:
    """Units gone, once they are as few as said; else when what was held is long overdue."""
    overdue = time.monotonic() + HOLD_US / 1e6 + LATE
    while (charged := charged_units(server, rule, limit, key)) != units and time.monotonic() < overdue:
        time.sleep(0.02)
    return charged


def script_calls(server: RedisServer) -> int:
    """Scripts that were called so far."""
    stats = server.info("commandstats").get("cmdstat_evalsha", "calls=0")
    return int(stats.split("calls=")[1].split(",")[0])
