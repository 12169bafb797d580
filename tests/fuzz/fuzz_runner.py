"""Sends batches of inputs, several at once, and checks the service after each.

Laws: input n of a kind depends on the seed, the kind and n alone (receipts are drawn anew, but from the same
places); the first fault of a batch ends the run, with the command that repeats it.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Any, NamedTuple, Protocol

from tests.fuzz.connections import NoReply
from tests.fuzz.envoy_messages import QuotaMessages, RateLimitMessages
from tests.fuzz.forward_auth_requests import ForwardAuthRequests
from tests.fuzz.json_bodies import CheckDocuments, ReferenceDocuments
from tests.fuzz.raw_http import RawRequests
from tests.fuzz.service_under_attack import BOOK, ServiceProbe
from tests.servers import RedisServer
from tests.service.service_harness import Service

BATCH = 2000
AT_ONCE = 48


class InputKind(Protocol):
    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def make(self, rng: Random) -> Any: ...
    async def send(self, made: Any) -> str | None: ...


KINDS: dict[str, tuple[Any, int]] = {  # and how many of a hundred inputs are of it
    "http": (RawRequests, 30),
    "json": (CheckDocuments, 25),
    "auth": (ForwardAuthRequests, 15),
    "rls": (RateLimitMessages, 15),
    "rlqs": (QuotaMessages, 8),
    "reference": (ReferenceDocuments, 7),
}
ENGINES = ("memory", "redis")


class FuzzFailure(Exception):
    """A failure, and how to reproduce it."""


class KindResult(NamedTuple):
    """The results of one kind of input on one engine."""

    kind: str
    engine: str
    inputs: int
    seconds: float
    first_kb: int
    last_kb: int

    def __str__(self) -> str:
        return (
            f"{self.kind:9} {self.engine:6} {self.inputs:7} inputs in {self.seconds:6.1f} s, "
            f"memory {self.first_kb / 1024:.0f} -> {self.last_kb / 1024:.0f} MiB"
        )


def fuzz(kinds: list[str], engines: list[str], inputs: int, seed: int, first: int = 0) -> Iterator[KindResult]:
    """So many inputs, among these kinds and engines, each kind against a service that has seen the ones before."""
    whole = sum(KINDS[kind][1] for kind in kinds)
    for engine in engines:
        with ExitStack() as stack:
            url = stack.enter_context(RedisServer()).url + "?deadline=5s" if engine == "redis" else "memory://"
            service = stack.enter_context(Service(BOOK, engine=url, log_level="warning"))
            judge = ServiceProbe(service)
            for kind in kinds:
                count = max(1, inputs * KINDS[kind][1] // whole // len(engines))
                begun = time.monotonic()
                for start in range(first, first + count, BATCH):
                    numbers = range(start, min(start + BATCH, first + count))
                    _batch(kind, service, numbers, seed, engine)
                    if not judge.first_kb:
                        judge.warm()
                    if faults := judge.faults():
                        again = _command(kind, engine, seed, f"--first {start} --inputs {len(numbers)}")
                        raise FuzzFailure(f"after {len(numbers)} inputs: {'; '.join(faults)}\nAgain: {again}")
                yield KindResult(kind, engine, count, time.monotonic() - begun, judge.first_kb, judge.kb)


def make_input(kind: str, seed: int, number: int, sender: InputKind) -> Any:
    return sender.make(Random(f"{seed}/{kind}/{number}"))


def _batch(kind: str, service: Service, numbers: range, seed: int, engine: str) -> None:
    left = iter(numbers)

    async def worker() -> None:
        sender: InputKind = KINDS[kind][0](service)
        await sender.open()
        try:
            for number in left:
                what = make_input(kind, seed, number, sender)
                try:
                    fault = await sender.send(what)
                except NoReply as error:
                    fault = str(error)
                except OSError as error:
                    fault = f"it cannot be reached: {error!r}"
                if fault is not None:
                    again = _command(kind, engine, seed, f"--only {number}")
                    state = "" if service.code is None else f" (it ended with {service.code})"
                    raise FuzzFailure(
                        f"input {number} of {kind}: {fault}{state}\nIt was {what!s:.600}\n"
                        f"It logged {service.output[-1500:]}\nAgain: {again}"
                    )
        finally:
            await sender.close()

    async def workers() -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(AT_ONCE, len(numbers))):
                    tasks.create_task(worker())
        except ExceptionGroup as group:
            # Not except*: until Python 3.11.4 it would wrap what is raised here in a group again.
            faults = group.subgroup(FuzzFailure)
            if faults is None:
                raise
            raise faults.exceptions[0] from None

    asyncio.run(workers())


def _command(kind: str, engine: str, seed: int, which: str) -> str:
    return f"python -m tests.fuzz --kind {kind} --engine {engine} --seed {seed} {which}"
