"""Packs requests to Redis as bytes and parses the replies. Pure.

A request is packed by hand, because nearly all of it is fixed when the meter is made: only the key and, rarely,
the cost change. On the wire -1 stands for "never" and "take"; it does not leave this file. (Several charges at
once: take_all.py and take_together.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, repeat
from typing import Any, NamedTuple, Protocol

from headgate.algorithms import ALGORITHMS
from headgate.algorithms.decision import ALLOWED, AT_US, MARK, Outcome, PausedOutcome, Receipt
from headgate.algorithms.limit import EXACT, Limit
from headgate.calendar import resolve
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.pending_cancellations import QueuePlace
from headgate.engines.port import Slot
from headgate.engines.redis import keys as redis_keys
from headgate.engines.redis.script_assembly import Script, algorithm_script, standalone_script
from headgate.errors import InvalidRule
from headgate.lazy_property import lazy_property
from headgate.limit_syntax import parse

_NEVER = -1
_PAUSED = -4
_OUTSIDE_CALENDAR = -2


class RedisRequest(NamedTuple):
    """One packed command, and what to do if its script is missing or its caller leaves."""

    packed: bytes
    script: Script | None  # to be loaded if the server does not know it
    tag: bytes = b""  # the hash tag, which the cluster's slot is computed from
    # Makes the requests that undo what the reply granted, for a caller that left before the reply came.
    undo: Callable[[Any], list[RedisRequest]] | None = None
    queue_place: QueuePlace | None = None  # set if the request cancels a reservation

    @property
    def needs_reply(self) -> bool:
        """Returns whether the reply must be read even if the caller has left."""
        return self.undo is not None or self.queue_place is not None


def command(*args: bytes | str | int | float) -> bytes:
    """Packs one Redis command."""
    return b"*%d\r\n%b" % (len(args), bulk_strings(args))


def bulk_strings(args: Sequence[bytes | str | int | float]) -> bytes:
    """Packs arguments as RESP bulk strings."""
    return b"".join(bulk_string_list(*args))


def bulk_string_list(*args: bytes | str | int | float) -> list[bytes]:
    """Packs each argument as a RESP bulk string of its own."""
    return [bulk(word if isinstance(word, bytes) else str(word).encode()) for word in args]


def bulk(word: bytes) -> bytes:
    """Packs one RESP bulk string."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def parse_outcome(reply: list[int]) -> Outcome:
    """Parses the seven numbers of a take into the outcome that the model returns."""
    allowed, remaining, retry_us, reset_us, delay_us, at_us, mark = reply
    return allowed == 1, remaining, None if retry_us == _NEVER else retry_us, reset_us, delay_us, at_us, mark


def parse_refund(reply: list[int]) -> Outcome:
    """Parses the reply to a refund: the state after it."""
    return parse_outcome(reply[:7])


def parse_many(reply: list[Any]) -> list[Any]:
    """Parses the reply of take_many: now, and six numbers for each key, or an error in place of the first."""
    allowed, remaining, retry_us, reset_us, delay_us, mark = (reply[column::6] for column in range(1, 7))
    if _NEVER in retry_us:
        retry_us = [None if each == _NEVER else each for each in retry_us]
    passed = [each == 1 for each in allowed]
    outcomes: list[Any] = list(zip(passed, remaining, retry_us, reset_us, delay_us, repeat(reply[0]), mark))
    if allowed.count(1) + allowed.count(0) != len(allowed):
        return [
            outcome if first.__class__ is int else first for outcome, first in zip(outcomes, allowed, strict=True)
        ]
    return outcomes


def outside_calendar_us(reply: list[int]) -> int | None:
    """Returns the server's time if it lies outside of the calendar window that was sent, else None."""
    return reply[1] if reply[0] == _OUTSIDE_CALENDAR else None


class TakeBuilder(Protocol):
    """Builds the requests of takes, and parses the replies: under one limit (RequestBuilder), or jointly under
    several (JointBuilder). There a key and a cost are tuples."""

    def decide(self, key: Any, cost: Any, patience_us: None, now_us: int) -> RedisRequest: ...
    def decide_each(self, keys: Sequence[Any], costs: Sequence[Any]) -> RedisRequest: ...
    def parse(self, reply: list[Any]) -> Any: ...
    def parse_each(self, reply: list[Any], count: int) -> Sequence[Any]: ...


class RequestBuilder:
    """Builds all requests about one limit with its charge options."""

    def __init__(self, limit: Limit, name: str, prefix: str, options: ChargeOptions | None = None) -> None:
        self.limit = limit
        self.name: str = name
        self._prefix = prefix
        self.head: bytes = redis_keys.key_head(prefix, limit.algorithm, name)
        self.is_shadow: bool = options is not None and options.is_shadow
        self.has_rule_state: bool = (
            options is not None and not options.without_rule_state
        )  # a lockout or overrides: needs take_all
        # The options that the script must know besides the charges; None if there are none.
        self.options: ChargeOptions | None = None if options is None or options.limit_only else options
        # The algorithm, if the script reads nothing but the count.
        self.plain_algorithm: str | None = limit.algorithm if self.options is None else None
        self.models: tuple[str, ...] = (limit.algorithm,)
        self._rule_heads: list[bytes] = []
        self.pause_head: bytes | None = None
        self._paused_heads: list[bytes] = []  # of the counts that a pause holds up
        self._rule_args: tuple[bytes, ...] = (bulk(b""),)
        if self.options is not None:
            self._pack_options(self.options, prefix)
        self.can_retune: bool = limit.algorithm in ALGORITHMS and ALGORITHMS[limit.algorithm].retune is not None
        self.calendar: bool = limit.is_calendar
        self._limit_args = limit_args(limit, name)
        self._args = bulk_strings(self._limit_args)
        self._args_and_one = self._args + bulk(b"1")
        self._algorithm = bulk(limit.algorithm.encode())
        self.key_template: tuple[bytes, int] = (
            b"$%%d\r\n%b%%b}\r\n" % self.head.replace(b"%", b"%%"),
            len(self.head) + 1,
        )

    def _pack_options(self, options: ChargeOptions, prefix: str) -> None:
        letters = "a" if options.is_shadow else ""
        lockout_args: tuple[int, ...] = ()
        if options.lockout is not None:
            letters, lockout_args = f"{letters}l", options.lockout
            self.models = (*self.models, "lockout")
            self._rule_heads.append(redis_keys.key_head(prefix, "lockout", options.rule))
        if options.overrides:
            letters = f"{letters}o"
            self._rule_heads.append(self.override_head)
        if options.pauses is not None:
            letters = f"{letters}p"
            self.models = (*self.models, "pause")
            self.pause_head = redis_keys.key_head(prefix, "pause", options.rule)
            self._paused_heads = [redis_keys.key_head(prefix, *count) for count in options.pauses]
            self._rule_heads.append(self.pause_head)
        self._rule_args = tuple(bulk_string_list(letters, *lockout_args))

    @property
    def override_head(self) -> bytes:
        return redis_keys.key_head(self._prefix, "override", "" if self.options is None else self.options.rule)

    def with_limit(self, limit: Limit) -> RequestBuilder:
        """Returns a builder for the same count under another limit of its algorithm."""
        return RequestBuilder(limit, self.name, self._prefix)

    @lazy_property
    def _take(self) -> tuple[Script, bytes, int]:
        """A take of one unit: the script, a template of the request, and the length of the key without the
        caller's part."""
        script = algorithm_script("take", self.limit.algorithm)
        head = self.key("")[:-1]
        start = b"*%d\r\n%b" % (4 + len(self.limit.args), bulk_strings(("EVALSHA", script.sha, 1)))
        template = b"%b$%%d\r\n%b%%b}\r\n%b" % (start, head.replace(b"%", b"%%"), self._args)
        return script, template, len(head) + 1

    def key(self, key: str) -> bytes:
        return redis_keys.build_key(self.head, key)

    def decide(self, key: str, cost: int, patience_us: int | None, now_us: int) -> RedisRequest:
        """Builds a take, or with `patience_us` a reservation, of one key."""
        script, template, head_length = self._take
        if cost == 1 and patience_us is None and not self.calendar:
            name = redis_keys.escape_key(key)
            return RedisRequest(template % (head_length + len(name), name), script, name)
        cost = min(cost, EXACT)  # a larger cost can never pass either
        if patience_us is None:
            return self._evalsha(script, key, *self.args(now_us), cost, -1)
        request = self._evalsha(script, key, *self.args(now_us), cost, patience_us)
        return request._replace(undo=partial(self._cancel, key, cost))

    def _cancel(self, key: str, cost: int, reply: list[int]) -> list[RedisRequest]:
        """Builds the requests that give a reservation back."""
        if reply[0] != 1 or not cost:
            return []
        outcome = parse_outcome(reply)
        return [self.refund(key, cost, Receipt.from_outcome(outcome, cost), True, outcome[AT_US])]

    @lazy_property
    def _take_many(self) -> TakeMany:
        return TakeMany([self])

    def decide_each(self, keys: Sequence[str], costs: Sequence[int]) -> RedisRequest:
        """Builds one request that takes from several keys. Each is decided for itself, so some may be refused.

        Not for calendar windows.
        """
        return self.decide(keys[0], costs[0], None, 0) if len(keys) == 1 else self._take_many.request(keys, costs)

    parse: Callable[[list[int]], Outcome] = staticmethod(parse_outcome)  # the reply to a take of one key

    def parse_each(self, reply: list[Any], count: int) -> list[Any]:
        """Parses the reply to `decide_each` of `count` keys: for each key its outcome, or an error."""
        return [parse_outcome(reply)] if count == 1 else parse_many(reply)

    def charge(self, cost: int, now_us: int) -> bytes:
        """Packs one of several charges: algorithm, cost, and the numbers of the limit."""
        return b"%b%b%b" % (self._algorithm, bulk(b"%d" % cost), self._args_at(now_us))

    def key_arg(self, escaped: bytes) -> bytes:
        """Packs the count's key."""
        template, head_length = self.key_template
        return template % (head_length + len(escaped), escaped)

    def take_args(self, cost: int, now_us: int) -> bytes:
        """Packs one of several charges of one algorithm: the numbers of the limit, and the cost."""
        if cost == 1 and not self.calendar:
            return self._args_and_one
        return self._args_at(now_us) + bulk(b"%d" % min(cost, EXACT))

    def rule_part(self, key: str, count: int) -> tuple[list[bytes], list[bytes]]:
        """Returns the keys and arguments that precede `count` charges of one rule."""
        return [redis_keys.build_key(head, key) for head in self._rule_heads], [
            bulk(b"%d" % count),
            *self._rule_args,
        ]

    def _args_at(self, now_us: int) -> bytes:
        return bulk_strings(self.args(now_us)) if self.calendar else self._args

    def args(self, now_us: int) -> tuple[int | float | str, ...]:
        """Returns the numbers of the limit; those of a calendar are the window at `now_us`."""
        return resolve(self.limit, now_us).args if self.calendar else self._limit_args

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool, now_us: int) -> RedisRequest:
        script = algorithm_script("refund", self.limit.algorithm, self.pause_head is not None)
        request = self._evalsha(script, key, units, int(cancel), *receipt, *self.args(now_us))
        return request._replace(queue_place=QueuePlace.from_receipt(self.key(key), receipt)) if cancel else request

    def surcharge(self, key: str, units: int, receipt: Receipt, now_us: int) -> RedisRequest:
        return self.refund(key, -min(units, EXACT), receipt, False, now_us)

    def retune(self, key: str) -> RedisRequest:
        script = algorithm_script("retune", self.limit.algorithm, self.pause_head is not None)
        return self._evalsha(script, key, *self._limit_args)

    def reset(self, key: str) -> RedisRequest:
        """Builds the deletion of the count, its lockout and its pause. An override is no count, and stays."""
        heads = self._rule_heads[:1] if "lockout" in self.models else []
        heads = heads if self.pause_head is None else [*heads, self.pause_head]
        redis_names = [self.key(key), *(redis_keys.build_key(head, key) for head in heads)]
        return RedisRequest(command("UNLINK", *redis_names), None, redis_keys.escape_key(key))

    def pause(self, key: str, duration_us: int) -> RedisRequest:
        """Builds the pause of a key, which holds up its counts."""
        assert self.pause_head is not None, "the limiter checks whether it can be paused"
        script, heads = standalone_script("pause", pausable=True), [self.pause_head, *self._paused_heads]
        redis_names = [redis_keys.build_key(head, key) for head in heads]
        packed = command("EVALSHA", script.sha, len(heads), *redis_names, duration_us)
        return RedisRequest(packed, script, redis_keys.escape_key(key))

    def slots(self, verb: str, key: str, *args: int | str) -> RedisRequest:
        script = standalone_script("slots", "slots", self.pause_head is not None)
        return self._evalsha(script, key, verb, *self.limit.args, *args)

    def acquire(self, key: str, ticket: int | None, wait: bool) -> RedisRequest:
        request = self.slots("acquire", key, "" if ticket is None else ticket, int(wait))
        return request._replace(undo=partial(self._release, key))

    def _release(self, key: str, reply: list[int]) -> list[RedisRequest]:
        """Builds the requests that give back a slot or a ticket."""
        outcome, ticket = parse_slot(reply)
        if outcome[ALLOWED]:
            return [self.slots("release", key, outcome[MARK])]
        return [] if ticket is None else [self.slots("leave", key, ticket)]

    def _evalsha(self, script: Script, key: str, *args: int | float | str) -> RedisRequest:
        redis_names = [self.key(key)]
        if self.pause_head is not None:
            redis_names.append(redis_keys.build_key(self.pause_head, key))
        packed = command("EVALSHA", script.sha, len(redis_names), *redis_names, *args)
        return RedisRequest(packed, script, redis_keys.escape_key(key))


class TakeMany:
    """The script and the packed limits that all takes of many keys under the same limits share."""

    __slots__ = ("_key_templates", "_limit_arg_count", "_limit_args", "_start", "script")

    def __init__(self, builders: Sequence[RequestBuilder]) -> None:
        self.script: Script = algorithm_script("take_many", builders[0].limit.algorithm)
        self._start = bulk_strings(("EVALSHA", self.script.sha))
        limit_args = [arg for builder in builders for arg in builder.args(0)]
        self._limit_args = bulk_strings((len(builders), *limit_args))
        self._limit_arg_count = 1 + len(limit_args)
        self._key_templates = [builder.key_template for builder in builders]

    def request(self, keys: Sequence[str], costs: Sequence[int]) -> RedisRequest:
        """Builds one request for these keys, call by call, in the order of the limits."""
        count = len(keys)
        names = redis_keys.escape_keys(keys)
        cost_args = b"" if costs.count(1) == count else bulk_strings([min(cost, EXACT) for cost in costs])
        arg_count = 3 + count + self._limit_arg_count + (count if cost_args else 0)
        key_args = [
            template % (head_length + len(name), name)
            for (template, head_length), name in zip(cycle(self._key_templates), names)
        ]
        start = b"*%d\r\n%b%b" % (arg_count, self._start, bulk(b"%d" % count))
        return RedisRequest(b"".join([start, *key_args, self._limit_args, cost_args]), self.script, names[0])


def limit_args(limit: Limit, name: str) -> tuple[int | float | str, ...]:
    """Returns the limit's numbers as scripts read them, for counts of this name.

    A state stores its pace only if another limit can use the same name: not if the counts are named after
    this very limit.
    """
    if not limit.pace:
        return limit.args
    return (*limit.args[:-1], "" if name == limit.text else f"{limit.pace}{_pace_of_name(name)}")


def _pace_of_name(name: str) -> int | str:
    """Returns the pace of the limit whose text is the name; an empty string if there is none."""
    try:
        limit = parse(name)
    except InvalidRule:
        return ""
    return limit.pace if limit.pace and limit.text == name else ""


BuiltCharge = tuple[RequestBuilder, str, int]


def parse_slot(reply: list[int]) -> Slot:
    """Parses the reply to acquire: the outcome, and a ticket if there is one."""
    return Slot(parse_slot_outcome(reply), (reply[7] or None) if len(reply) > 7 else None)


def parse_slot_outcome(reply: list[int]) -> Outcome:
    """Parses the outcome of a request for a slot, or of a peek at the slots."""
    outcome = parse_outcome(reply[:7])
    return PausedOutcome.wrap(outcome, reply[8]) if reply[0] == _PAUSED else outcome


def parse_renewal(reply: list[int]) -> int | None:
    """Parses the reply to renew: when the lease expires, or None if it is gone."""
    return reply[1] if reply[0] else None


def membership_request(prefix: str, verb: str, member_id: str, ttl_us: int = 0) -> RedisRequest:
    """Builds the `heartbeat` or the departure (`leave`) of a process that shares the limits."""
    script, key = standalone_script("membership"), redis_keys.members_key(prefix)
    return RedisRequest(command("EVALSHA", script.sha, 1, key, verb, member_id, ttl_us), script, key)
