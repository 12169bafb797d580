"""Builds requests for several charges that are decided together, and parses their replies. Pure.

On the wire -3 stands for "locked out", -4 and -5 for "paused"; they do not leave this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
    PausedOutcome,
    Receipt,
)
from headgate.algorithms.limit import EXACT
from headgate.engines import overrides
from headgate.engines.charge_options import group_by_rule
from headgate.engines.redis import keys
from headgate.engines.redis.protocol import (
    BuiltCharge,
    RedisRequest,
    RequestBuilder,
    bulk,
    bulk_string_list,
    outside_calendar_us,
    parse_outcome,
)
from headgate.engines.redis.script_assembly import mixed_script
from headgate.engines.redis.take_together import can_take_together, parse_passed, take_together_request
from headgate.errors import CorruptState, InvalidRule

_LOCKED_OUT = -3
_PAUSED, _SERVED_AFTER_PAUSE = -4, -5

DRY_RUN, COMMIT, PRECHECK = 0, 1, 2  # charges are decided only; committed; checked before a commit elsewhere


def joint_request(
    charges: Sequence[BuiltCharge], patience_us: int | None, now_us: int, commit: int = COMMIT
) -> RedisRequest:
    """Builds one request for several charges; `commit` says what becomes of them."""
    if patience_us is None and commit == COMMIT and can_take_together(charges):
        return take_together_request(charges, now_us)
    return take_all_request(charges, patience_us, now_us, commit)


def take_all_request(
    charges: Sequence[BuiltCharge], patience_us: int | None, now_us: int, commit: int = COMMIT
) -> RedisRequest:
    """Builds one request for several charges of any kind."""
    script = mixed_script("take_all", {name for builder, _, _ in charges for name in builder.models})
    key_args: list[bytes] = []
    args = bulk_string_list(-1 if patience_us is None else patience_us, commit)
    arg_count = len(args)
    for part in group_by_rule(charges):
        first, key, _ = part[0]
        rule_keys, rule_args = first.rule_part(key, len(part))
        key_args += rule_keys
        args += rule_args
        arg_count += len(rule_args)
        for builder, key, cost in part:
            key_args.append(builder.key(key))
            args.append(builder.charge(min(cost, EXACT), now_us))
            arg_count += 2 + len(builder.limit.args)
    start = bulk_string_list("EVALSHA", script.sha, len(key_args))
    arg_count += len(start) + len(key_args)
    packed = b"".join([b"*%d\r\n" % arg_count, *start, *map(bulk, key_args), *args])
    undo = partial(_cancel_all, charges) if patience_us is not None and commit == COMMIT else None
    return RedisRequest(packed, script, keys.escape_key(charges[0][1]), undo)


def refund(charge: BuiltCharge, outcome: Outcome, cancel: bool) -> RedisRequest:
    """Builds the refund of a charge that passed, with the numbers of the limit that decided."""
    builder, key, cost = charge
    decided_by = builder.with_limit(outcome.limit) if isinstance(outcome, OverriddenOutcome) else builder
    return decided_by.refund(key, cost, Receipt.from_outcome(outcome, cost), cancel, outcome[AT_US])


def cancel(charge: BuiltCharge, outcome: Outcome) -> RedisRequest:
    """Builds the cancellation of a reservation."""
    return refund(charge, outcome, cancel=True)


def _cancel_all(charges: Sequence[BuiltCharge], reply: list[Any]) -> list[RedisRequest]:
    """Builds the cancellations of reservations that were made together, the last one first."""
    if any_outside_calendar_us(reply) is not None:
        return []
    decided = list(zip(charges, parse_outcomes(reply, charges), strict=True))
    if not all(outcome[ALLOWED] or builder.is_shadow for (builder, _, _), outcome in decided):
        return []
    return [cancel(charge, outcome) for charge, outcome in reversed(decided) if outcome[ALLOWED] and charge[2]]


def parse_outcomes(reply: list[Any], charges: Sequence[BuiltCharge]) -> list[Outcome]:
    """Parses the reply to several charges: one row if all of one algorithm pass, or a row for each."""
    if reply[0].__class__ is int:
        return parse_passed(reply)
    return [_parse_charge(row, builder, key) for row, (builder, key, _) in zip(reply, charges, strict=True)]


def _parse_charge(reply: list[Any], builder: RequestBuilder, key: str) -> Outcome:
    if reply[0] == _LOCKED_OUT:
        return LockedOutcome(parse_outcome(reply))
    if reply[0] in (_PAUSED, _SERVED_AFTER_PAUSE):
        *verdict, paused_us = reply
        verdict[ALLOWED] = int(reply[0] == _SERVED_AFTER_PAUSE)
        return PausedOutcome.wrap(parse_outcome(verdict), paused_us)
    if len(reply) == 7:
        return parse_outcome(reply)
    *verdict, line = reply
    try:
        return overrides.overridden_outcome(parse_outcome(verdict), builder.limit, overrides.unpack(line.decode()))
    except (InvalidRule, UnicodeDecodeError) as error:
        override = keys.build_key(builder.override_head, key).decode()
        raise CorruptState(
            f"The override at {override} cannot be read: {error} Set it again, or unset it."
        ) from None


def any_outside_calendar_us(reply: list[Any]) -> int | None:
    """Returns the server's time if that lies outside of the calendar windows of several charges, else None."""
    return None if reply[0].__class__ is int else outside_calendar_us(reply[0])
