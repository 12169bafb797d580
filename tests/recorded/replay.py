"""Replays every case of a file on one engine and counts the results."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headgate import HeadgateError
from tests.recorded import (
    replay_gcra,
    replay_guava,
    replay_netflix,
    replay_nginx,
    replay_sentinel,
    replay_spring,
    replay_xtimerate,
)
from tests.recorded.driven_engines import ReplayEngine
from tests.recorded.step_result import ComparedFact, StepResult
from tests.recorded.vectors import UnreadableVector, VectorCase, read_vectors

Replay = Callable[[VectorCase, ReplayEngine], Iterator[StepResult]]

# By how the subject begins: a note in brackets may follow.
_SUBJECTS: dict[str, Replay] = {
    "guava": replay_guava.replay,
    "golang.org/x/time/rate": replay_xtimerate.replay,
    "netflix": replay_netflix.replay,
    "nginx limit_req": replay_nginx.replay,
    "redis-cell": replay_gcra.replay,
    "sentinel": replay_sentinel.replay,
    "spring-cloud-gateway": replay_spring.replay,
    "throttled": replay_gcra.replay,
}

_LOST = "could not be replayed (see above)"


class StepMismatch(NamedTuple):
    case: str
    step: int
    facts: Sequence[ComparedFact]


@dataclass
class ReplayTally:
    """One file on one engine. Every step is compared or apart."""

    cases: int = 0
    steps: int = 0
    compared: int = 0
    apart: Counter[str] = field(default_factory=Counter)
    mismatches: list[StepMismatch] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


OF_RULES = ("keys.jsonl", "match.jsonl")


@dataclass
class VectorFile:
    """A file sorted into what can be replayed, what is not covered, and what cannot be read."""

    name: str
    cases: list[tuple[VectorCase, Replay]] = field(default_factory=list)
    uncovered: dict[str, list[VectorCase]] = field(default_factory=dict)  # by what they are of
    troubles: list[str] = field(default_factory=list)


def sort_cases(path: Path) -> VectorFile:
    file = VectorFile(path.name)
    for case in read_vectors(path):
        if isinstance(case, UnreadableVector):
            file.troubles.append(str(case))
        elif why := _not_covered(case):
            file.uncovered.setdefault(why, []).append(case)
        elif (replay := _replay_of(case)) is not None:
            file.cases.append((case, replay))
        else:
            file.troubles.append(f"{path.name}: {case.name} is of an unknown subject: {case.subject!r}.")
    return file


def _not_covered(case: VectorCase) -> str | None:
    subject = case.subject.lower()
    if case.is_claim:
        return "defects of others' scripts, which tests of their own show ours not to have"
    if subject.startswith("sentinel"):
        kind = case.config.raw.get("kind", "sliding_window")
        return None if kind == "sliding_window" else f"Sentinel's {kind}"
    return None


def _replay_of(case: VectorCase) -> Replay | None:
    subject = case.subject.lower()
    return next((replay for start, replay in _SUBJECTS.items() if subject.startswith(start)), None)


def replay(file: VectorFile, engine: ReplayEngine) -> ReplayTally:
    tally = ReplayTally()
    for case, replay_case in file.cases:
        tally.cases += 1
        tally.steps += len(case.steps)
        done = 0
        try:
            for outcome in replay_case(case, engine):
                done += 1
                _enter(tally, case, done, outcome)
        except (UnreadableVector, HeadgateError) as why:
            tally.troubles.append(f"{file.name}: {case.name}, on {engine.name}, after {done} steps: {why}")
        tally.apart += Counter({_LOST: len(case.steps) - done})
    return tally


def _enter(tally: ReplayTally, case: VectorCase, number: int, outcome: StepResult) -> None:
    if outcome.apart is not None:
        tally.apart[outcome.apart] += 1
        return
    tally.compared += 1
    if outcome.differs:
        facts = [fact for fact in outcome.facts if not fact.same]
        tally.mismatches.append(StepMismatch(case.name, number, facts))
