"""Decides charges on keys of several slots of a cluster, which no single script can read.

Charges form one group for each slot; a rule's charges have one key, so they are never split. First all groups are
asked whether their live charges would pass, then all are committed at once, and undone where one refuses after
all. A commit that cannot be undone because its server is gone costs its units, until they expire by themselves.

Shadow charges are decided in the first round, each by itself, and refusals are counted for lockouts there; both
are final then, and left out of the second round. If all live charges lie in one group there is nothing to agree
on: one round commits everything, and they are as atomic as alone. A shadow charge whose server does not reply
delays no other charge: it is waited for only briefly, and its outcome is degraded, unless no server replied at
all.
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
from headgate.engines.deadlines import shadow_timeout
from headgate.engines.redis import keys, protocol, take_all
from headgate.engines.redis.errors import ClusterBusy, RedisError
from headgate.engines.redis.protocol import BuiltCharge, RedisRequest
from headgate.engines.redis.redirects import Execute, decide_all
from headgate.engines.redis.topology import slot
from headgate.flow import Flow

# Sends several requests; for each its timeout in seconds.
ExecuteAll = Callable[[Sequence[RedisRequest], Sequence[float | None]], Any]
Group = Sequence[BuiltCharge]
GroupReply = list[Outcome] | RedisError


# mypy takes two subclasses of one tuple for two tuples.
class CrossSlotLockedOutcome(LockedOutcome, CrossSlotOutcome):  # type: ignore[misc]
    """The outcome of a charge whose rule is locked out, decided together with charges in other slots."""

    __slots__ = ()


class CrossSlotOverriddenOutcome(OverriddenOutcome, CrossSlotOutcome):  # type: ignore[misc]
    """The outcome of a charge under an override, decided together with charges in other slots."""


def decide_by_slot(
    execute: Execute,
    execute_all: ExecuteAll,
    charges: Group,
    patience_us: int | None,
    now_us: int,
    commit: bool = True,
    deadline: float | None = None,
) -> Flow[list[Outcome]]:
    """Decides several charges in a cluster: by one request if their keys share a slot."""
    by_slot: dict[int, list[int]] = {}
    for index, (_, key, _) in enumerate(charges):
        by_slot.setdefault(slot(keys.escape_key(key)), []).append(index)
    if len(by_slot) == 1:
        return (yield from decide_all(execute, charges, patience_us, now_us, commit))
    groups = [[charges[index] for index in indexes] for indexes in by_slot.values()]
    grouped = yield from decide_across_slots(execute_all, groups, patience_us, now_us, commit, deadline)
    outcomes = dict(zip(chain(*by_slot.values()), chain(*grouped), strict=True))
    return [outcomes[index] for index in range(len(charges))]


def decide_across_slots(
    execute_all: ExecuteAll,
    groups: Sequence[Group],
    patience_us: int | None,
    now_us: int,
    commit: bool = True,
    deadline: float | None = None,
) -> Flow[list[list[Outcome]]]:
    """Decides several groups of charges in two rounds.

    A group that was undone, or would have passed, returns its state without the charge.
    """

    def execute_groups(groups: Sequence[Group], mode: int) -> Flow[list[GroupReply]]:
        return _execute_groups(execute_all, groups, patience_us, now_us, mode, deadline)

    live = [[charge for charge in group if not charge[0].is_shadow] for group in groups]
    if not commit or sum(map(bool, live)) <= 1:
        group_replies = yield from execute_groups(groups, take_all.COMMIT if commit else take_all.DRY_RUN)
        return _outcomes(group_replies, groups, now_us, cross_slot=not commit)
    prechecked = yield from execute_groups(groups, take_all.PRECHECK)
    if not all(_passes(*pair) for pair in zip(prechecked, groups, strict=True)):
        return _outcomes(prechecked, groups, now_us)
    committing = [index for index, group in enumerate(live) if group]
    committed = yield from execute_groups([live[index] for index in committing], take_all.COMMIT)
    if not all(_passes(reply, live[index]) for index, reply in zip(committing, committed, strict=True)):
        live_groups = [live[index] for index in committing]
        yield from _undo_commits(execute_all, live_groups, committed, patience_us is not None, deadline)
    for index, reply in zip(committing, committed, strict=True):
        prechecked[index] = _merge_shadows(reply, prechecked[index], groups[index])
    return _outcomes(prechecked, groups, now_us)


def _execute_groups(
    execute_all: ExecuteAll,
    groups: Sequence[Group],
    patience_us: int | None,
    now_us: int,
    mode: int,
    deadline: float | None,
) -> Flow[list[GroupReply]]:
    """Sends all groups at once. One whose calendar window has ended stored nothing, and is sent again with the
    server's time."""
    results: list[GroupReply] = [ClusterBusy("a window of the calendar ended in between")] * len(groups)
    waiting = dict.fromkeys(range(len(groups)), now_us)
    for _ in range(2):
        requests = [
            take_all.joint_request(groups[index], patience_us, at_us, mode) for index, at_us in waiting.items()
        ]
        replies = yield partial(execute_all, requests, [_deadline(groups[index], deadline) for index in waiting])
        outside: dict[int, int] = {}
        for index, reply in zip(waiting, replies, strict=True):
            if isinstance(reply, RedisError):
                results[index] = reply
            elif (server_us := take_all.any_outside_calendar_us(reply)) is not None:
                outside[index] = server_us
            else:
                results[index] = take_all.parse_outcomes(reply, groups[index])
        waiting = outside
        if not waiting:
            break
    return results


def _deadline(group: Group, deadline: float | None) -> float | None:
    """Returns how long to wait for the group. One of shadow charges only delays no other."""
    builders = [builder for builder, _, _ in group]
    return shadow_timeout(builders, deadline) if all(builder.is_shadow for builder in builders) else deadline


def _undo_commits(
    execute_all: ExecuteAll,
    groups: Sequence[Group],
    committed: Sequence[GroupReply],
    cancel: bool,
    deadline: float | None,
) -> Flow[None]:
    """Refunds what was committed, and replaces each outcome by the state after the refund."""
    refunded: list[tuple[list[Outcome], int]] = []
    refunds: list[RedisRequest] = []
    for group, group_reply in zip(groups, committed, strict=True):
        if isinstance(group_reply, RedisError) or not _passes(group_reply, group):
            continue
        for index, (charge, outcome) in enumerate(zip(group, group_reply, strict=True)):
            refunds.append(take_all.refund(charge, outcome, cancel))
            refunded.append((group_reply, index))
    replies = yield partial(execute_all, refunds, [deadline] * len(refunds))
    for (group_reply, index), reply in zip(refunded, replies, strict=True):
        if not isinstance(reply, RedisError):
            group_reply[index] = _keep_override(group_reply[index], _as_untaken(protocol.parse_refund(reply)))


def _passes(group_reply: GroupReply, group: Group) -> bool:
    """Returns whether a group's live charges pass; true if it has none, whatever its reply."""
    if isinstance(group_reply, RedisError):
        return all(builder.is_shadow for builder, _, _ in group)
    return all(
        outcome[ALLOWED] or builder.is_shadow for outcome, (builder, _, _) in zip(group_reply, group, strict=True)
    )


def _merge_shadows(committed: GroupReply, prechecked: GroupReply, group: Group) -> GroupReply:
    """Merges the outcomes of a group: of live charges from the commit, of shadow charges from the first round."""
    if isinstance(committed, RedisError) or isinstance(prechecked, RedisError):
        return committed
    live = iter(committed)
    return [
        shadow if builder.is_shadow else next(live)
        for shadow, (builder, _, _) in zip(prechecked, group, strict=True)
    ]


def _as_untaken(outcome: Outcome) -> Outcome:
    """Returns the outcome of a charge that would have passed had not another one refused."""
    return True, outcome[REMAINING], 0, outcome[RESET_AFTER_US], 0, outcome[AT_US], outcome[MARK]


def _keep_override(before: Outcome, outcome: Outcome) -> Outcome:
    """Returns the outcome with the override that `before` has, if it has one."""
    if not isinstance(before, OverriddenOutcome):
        return outcome
    overridden = OverriddenOutcome(outcome)
    overridden.limit = before.limit
    return overridden


def _outcomes(
    group_replies: Sequence[GroupReply], groups: Sequence[Group], now_us: int, cross_slot: bool = True
) -> list[list[Outcome]]:
    """Returns the outcomes of all groups; raises the error of a group whose live charges have none."""
    all_failed = all(isinstance(group_reply, RedisError) for group_reply in group_replies)
    outcomes: list[list[Outcome]] = []
    for group_reply, group in zip(group_replies, groups, strict=True):
        if not isinstance(group_reply, RedisError):
            outcomes.append([_as_cross_slot(outcome) for outcome in group_reply] if cross_slot else group_reply)
        elif all_failed or not _passes(group_reply, group):
            _, group_reply.key, _ = group[0]
            raise group_reply
        else:
            outcomes.append([DegradedOutcome((True, 0, 0, 0, 0, now_us, 0))] * len(group))
    return outcomes


def _as_cross_slot(outcome: Outcome) -> Outcome:
    """Marks an outcome as decided in several slots."""
    if isinstance(outcome, LockedOutcome):
        return CrossSlotLockedOutcome(outcome)
    if isinstance(outcome, OverriddenOutcome):
        overridden = CrossSlotOverriddenOutcome(outcome)
        overridden.limit = outcome.limit
        return overridden
    return CrossSlotOutcome(outcome)
