"""Describes engines as text, so that another process can build the same one.

    unix:///tmp/socket?db=0                        the engine of that URL
    memo unix:///tmp/socket?db=0                   the same, wrapped; the outermost word first
    memo lease?units=4&hold_us=5000 unix:///...    with the options of a wrapper
    racing unix:///tmp/socket?db=0                 wrong on purpose

A racing engine asks the model in Python and keeps the state in Redis, by a GET and, a moment later, a SET. Alone
it is right. Two at a time lose each other's charges, as every limiter does that was written this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import redis

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.port import AsyncEngine, Engine, Meter
from headgate.engines.stack import InnermostEngine
from headgate.engines.url import open_async_engine, open_engine
from tests.linearizability.checker import Model

# Each is Name(inner, *, options, clock), and AsyncName likewise.
WRAPPERS = {
    "memo": ("headgate.engines.layers.denial_cache", "DenialCacheEngine"),
    "lease": ("headgate.engines.layers.prefetch", "PrefetchEngine"),
}


def engine(text: str) -> Engine:
    *words, url = text.split(" ")
    if words == ["racing"]:
        return RacingEngine(url)
    made: Engine = _wrapped(words, open_engine(url, prefix="hg", clock=SystemClock()), "")
    return made


def async_engine(text: str) -> AsyncEngine:
    *words, url = text.split(" ")
    made: AsyncEngine = _wrapped(words, open_async_engine(url, prefix="hg", clock=SystemClock()), "Async")
    return made


def _wrapped(words: Sequence[str], made: Any, prefix: str) -> Any:
    for word in reversed(words):
        name, _, options = word.partition("?")
        module, kind = WRAPPERS[name]
        wrapper = getattr(import_module(module), prefix + kind)
        made = wrapper(made, clock=SystemClock(), **{option: int(value) for option, value in parse_qsl(options)})
    return made


class RacingEngine(InnermostEngine):
    """Loads, decides and saves in three steps, and others may come between them."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url, decode_responses=True)

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> RacingMeter:
        return RacingMeter(self.client, limit, name)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> NoReturn:
        raise NotImplementedError("There are no slots in the race.")

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        return [meter.decide(key, cost) for meter, key, cost in charges]

    def overrides(self, rule: str) -> NoReturn:
        raise NotImplementedError("Nobody overrides in the race.")

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> NoReturn:
        raise NotImplementedError("Nothing is divided in the race.")

    def shard(self, key: str) -> int:
        return 0

    def close(self) -> None:
        self.client.close()


class RacingMeter:
    options: ChargeOptions | None = None

    def __init__(self, client: Any, limit: Limit, name: str) -> None:
        self.limit = limit
        self.name = name
        self._client = client
        self._model = Model(limit)

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        before, now_us = self._client.get(key), self._now_us()
        outcome, after = self._model.decide(before, now_us, cost)
        return self._saved(key, outcome, before, after)

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        before, now_us = self._client.get(key), self._now_us()
        outcome, after = self._model.refund(before, now_us, units, receipt)
        return self._saved(key, outcome, before, after)

    def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        raise NotImplementedError("Nobody settles in these histories.")

    def _now_us(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1_000_000 + int(micros)

    def _saved(self, key: str, outcome: Outcome, before: str | None, after: str | None) -> Outcome:
        if after is not None and after != before:
            self._client.set(key, after)
        return outcome

    def retune(self, key: str) -> None:
        """Nothing to reckon anew."""

    def pause(self, key: str, duration_us: int) -> int:
        raise NotImplementedError("Nobody pauses in these histories.")

    def reset(self, key: str) -> None:
        self._client.delete(key)
