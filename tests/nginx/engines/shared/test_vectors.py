"""A leaky bucket on the shared dict decides what nginx's limit_req decided on a frozen clock."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from headgate import Charge
from headgate.algorithms.limit import Limit
from tests.nginx.engines.shared.shared_harness import SharedDictMeter, SharedDictNginx, WireOutcome
from tests.recorded import driven_engines
from tests.recorded.replay_nginx import replay
from tests.recorded.vectors import VectorCase, read_vectors

VECTORS = Path(__file__).parents[3] / "vectors"


class WireDecision(NamedTuple):
    """As much of one as the replay looks at."""

    verdicts: Sequence[WireOutcome]

    @property
    def allowed(self) -> bool:
        return all(outcome.allowed == 1 for outcome in self.verdicts)


class SharedDictReplay:
    """Replays cases on a shared dict, each under a fresh name."""

    _numbers = count()

    def __init__(self, place: SharedDictNginx, limit: Limit | None = None) -> None:
        self._place, self._limit, self._name = place, limit, self.fresh_name()

    def at(self, now_us: int) -> None:
        self._place.at(now_us)

    def fresh_name(self) -> str:
        return f"case {next(self._numbers)}"

    @contextmanager
    def limiter(self, limit: Limit) -> Iterator["SharedDictReplay"]:
        yield SharedDictReplay(self._place, limit)

    def take(self, key: str, cost: int) -> WireDecision:
        assert self._limit is not None
        return WireDecision([self._place.take(SharedDictMeter(self._limit, self._name), key, cost)])

    def take_all(self, charges: Sequence[Charge]) -> WireDecision:
        charged = [
            (SharedDictMeter(cast(Limit, charge.limit), charge.name or ""), charge.key, charge.cost)
            for charge in charges
        ]
        return WireDecision(self._place.decide(charged))


@pytest.mark.parametrize(
    ("name", "cases", "steps"), [("nginx_fakeclock.jsonl", 36, 1025), ("nginx_derived.jsonl", 50, 3000)]
)
def test_it_decides_as_limit_req_did(name: str, cases: int, steps: int, nginx: SharedDictNginx) -> None:
    there = cast(driven_engines.ReplayEngine, SharedDictReplay(nginx))
    found = [case for case in read_vectors(VECTORS / name) if isinstance(case, VectorCase)]
    outcomes = [(case.name, outcome) for case in found for outcome in replay(case, there)]
    assert [pair for pair in outcomes if pair[1].differs] == []
    assert (len(found), len(outcomes), {outcome.apart for _, outcome in outcomes}) == (cases, steps, {None})
