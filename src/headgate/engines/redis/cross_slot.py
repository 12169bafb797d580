"""Charges on keys of several slots of a cluster, which no single script can see.

One group for each slot; a rule's charges have one key, so they are never parted. All groups are asked whether
their live charges would pass, then all are committed at once, and taken back where one refuses after all. What
cannot be taken back because its server is gone costs its own units, until they have run out by themselves.

What is aside is decided in the first of those rounds, by itself, and so are refusals counted for lockouts; both
are done then, and left out of the second. If all live charges lie in one group there is nothing to agree on:
one round commits everything, and they are as atomic as alone. An aside charge whose server gives no answer is
in nobody's way: it is waited for promptly only, and its facts are degraded, unless nobody answered at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    CrossSlotOutcome,
    DegradedOutcome,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
)
from headgate.engines.deadlines import prompt
from headgate.engines.redis import keys, protocol
from headgate.engines.redis.errors import ClusterBusy, RedisError
from headgate.engines.redis.protocol import BuiltCharge, RedisRequest
from headgate.engines.redis.redirects import Ask, decide_all
from headgate.engines.redis.topology import slot
from headgate.flow import Flow

AskAll = Callable[[Sequence[RedisRequest], Sequence[float | None]], Any]  # each within so many seconds
Group = Sequence[BuiltCharge]
Answer = list[Outcome] | RedisError


# mypy takes two kinds of one tuple for two tuples.
class CrossSlotLockedOutcome(LockedOutcome, CrossSlotOutcome):  # type: ignore[misc]
    """Of a charge whose rule is locked out, decided together with others elsewhere."""

    __slots__ = ()


class CrossSlotOverriddenOutcome(OverriddenOutcome, CrossSlotOutcome):  # type: ignore[misc]
    """Of a charge by a limit of the key's own, decided together with others elsewhere."""


def decide_by_slot(
    ask: Ask,
    ask_all: AskAll,
    charges: Group,
    patience_us: int | None,
    now_us: int,
    commit: bool = True,
    deadline: float | None = None,
) -> Flow[list[Outcome]]:
    """Several charges in a cluster: one question if their keys share a slot, otherwise apart."""
    places: dict[int, list[int]] = {}
    for place, (_, key, _) in enumerate(charges):
        places.setdefault(slot(keys.escaped(key)), []).append(place)
    if len(places) == 1:
        return (yield from decide_all(ask, charges, patience_us, now_us, commit))
    groups = [[charges[place] for place in group] for group in places.values()]
    answers = yield from decide_apart(ask_all, groups, patience_us, now_us, commit, deadline)
    facts = dict(zip(chain(*places.values()), chain(*answers), strict=True))
    return [facts[place] for place in range(len(charges))]


def decide_apart(
    ask_all: AskAll,
    groups: Sequence[Group],
    patience_us: int | None,
    now_us: int,
    commit: bool = True,
    deadline: float | None = None,
) -> Flow[list[list[Outcome]]]:
    """A group that was taken back, and one that would have passed, tell how things stand."""

    def asked(groups: Sequence[Group], mode: int) -> Flow[list[Answer]]:
        return _asked(ask_all, groups, patience_us, now_us, mode, deadline)

    live = [[charge for charge in group if not charge[0].aside] for group in groups]
    if not commit or sum(map(bool, live)) <= 1:
        answers = yield from asked(groups, protocol.COMMIT if commit else protocol.TOLD)
        return _told(answers, groups, now_us, apart=not commit)
    would = yield from asked(groups, protocol.AHEAD)
    if not all(_pass(*pair) for pair in zip(would, groups, strict=True)):
        return _told(would, groups, now_us)
    deciding = [place for place, group in enumerate(live) if group]
    done = yield from asked([live[place] for place in deciding], protocol.COMMIT)
    if not all(_pass(answer, live[place]) for place, answer in zip(deciding, done, strict=True)):
        committed = [live[place] for place in deciding]
        yield from _take_back(ask_all, committed, done, patience_us is not None, deadline)
    for place, answer in zip(deciding, done, strict=True):
        would[place] = _with_aside(answer, would[place], groups[place])
    return _told(would, groups, now_us)


def _asked(
    ask_all: AskAll,
    groups: Sequence[Group],
    patience_us: int | None,
    now_us: int,
    mode: int,
    deadline: float | None,
) -> Flow[list[Answer]]:
    """All groups at once. One whose calendar ended has kept nothing, and is asked again from the server's time."""
    found: list[Answer] = [ClusterBusy("a window of the calendar ended in between")] * len(groups)
    waiting = dict.fromkeys(range(len(groups)), now_us)
    for _ in range(2):
        questions = [
            protocol.together(groups[place], patience_us, at_us, mode) for place, at_us in waiting.items()
        ]
        replies = yield partial(ask_all, questions, [_deadline(groups[place], deadline) for place in waiting])
        moved: dict[int, int] = {}
        for place, reply in zip(waiting, replies, strict=True):
            if isinstance(reply, RedisError):
                found[place] = reply
            elif (server_us := protocol.any_outside_calendar_us(reply)) is not None:
                moved[place] = server_us
            else:
                found[place] = protocol.all_facts(reply, groups[place])
        waiting = moved
        if not waiting:
            break
    return found


def _deadline(group: Group, deadline: float | None) -> float | None:
    """Of the group's own. One that is all aside holds nobody up."""
    asked = [questions for questions, _, _ in group]
    return prompt(asked, deadline) if all(questions.aside for questions in asked) else deadline


def _take_back(
    ask_all: AskAll, groups: Sequence[Group], done: Sequence[Answer], cancel: bool, deadline: float | None
) -> Flow[None]:
    """Give back what was committed, and write how things stand into its place."""
    back: list[tuple[list[Outcome], int]] = []
    refunds: list[RedisRequest] = []
    for group, answer in zip(groups, done, strict=True):
        if isinstance(answer, RedisError) or not _pass(answer, group):
            continue
        for index, (charge, facts) in enumerate(zip(group, answer, strict=True)):
            refunds.append(protocol.refund(charge, facts, cancel))
            back.append((answer, index))
    replies = yield partial(ask_all, refunds, [deadline] * len(refunds))
    for (answer, index), reply in zip(back, replies, strict=True):
        if not isinstance(reply, RedisError):
            answer[index] = _like(answer[index], _standing(protocol.parse_refund(reply)))


def _pass(answer: Answer, group: Group) -> bool:
    """Whether a group's live charges pass. One that has none is in nobody's way, whatever became of it."""
    if isinstance(answer, RedisError):
        return all(questions.aside for questions, _, _ in group)
    return all(facts[ALLOWED] or questions.aside for facts, (questions, _, _) in zip(answer, group, strict=True))


def _with_aside(done: Answer, ahead: Answer, group: Group) -> Answer:
    """The answer to a group: of its live charges from the commit, of the others from the round ahead of it."""
    if isinstance(done, RedisError) or isinstance(ahead, RedisError):
        return done
    live = iter(done)
    return [
        before if questions.aside else next(live) for before, (questions, _, _) in zip(ahead, group, strict=True)
    ]


def _standing(facts: Outcome) -> Outcome:
    """How things stand for a charge that would have passed had not another one refused."""
    return True, facts[REMAINING], 0, facts[RESET_AFTER_US], 0, facts[AT_US], facts[MARK]


def _like(kind: Outcome, facts: Outcome) -> Outcome:
    """Outcome that say beside themselves what the others did."""
    if not isinstance(kind, OverriddenOutcome):
        return facts
    found = OverriddenOutcome(facts)
    found.limit = kind.limit
    return found


def _told(
    answers: Sequence[Answer], groups: Sequence[Group], now_us: int, apart: bool = True
) -> list[list[Outcome]]:
    nobody = all(isinstance(answer, RedisError) for answer in answers)
    found: list[list[Outcome]] = []
    for answer, group in zip(answers, groups, strict=True):
        if not isinstance(answer, RedisError):
            found.append([_apart(facts) for facts in answer] if apart else answer)
        elif nobody or not _pass(answer, group):
            _, answer.key, _ = group[0]
            raise answer
        else:
            found.append([DegradedOutcome((True, 0, 0, 0, 0, now_us, 0))] * len(group))
    return found


def _apart(facts: Outcome) -> Outcome:
    if isinstance(facts, LockedOutcome):
        return CrossSlotLockedOutcome(facts)
    if isinstance(facts, OverriddenOutcome):
        found = CrossSlotOverriddenOutcome(facts)
        found.limit = facts.limit
        return found
    return CrossSlotOutcome(facts)
