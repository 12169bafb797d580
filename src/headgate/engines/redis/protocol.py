"""Questions and answers as bytes: what is asked of the server, and what its numbers mean. Pure.

A question is packed by hand, because nearly all of it is known when the meter is made: only the key and, rarely,
the cost change. -1 stands for "never" and "take" on the wire, and -3 for "locked out"; both die here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from headgate.algorithms import ALGORITHMS
from headgate.algorithms.decision import ALLOWED, AT_US, MARK, LockedOutcome, Outcome, OverriddenOutcome, Receipt
from headgate.algorithms.limit import EXACT, Limit
from headgate.algorithms.token_bucket import TokenBucket
from headgate.calendar import resolve
from headgate.engines import overrides
from headgate.engines.charge_options import ChargeOptions, parts
from headgate.engines.pending_cancellations import QueuePlace
from headgate.engines.port import Slot
from headgate.engines.redis import keys as redis_keys
from headgate.engines.redis.script_assembly import Script, bare, several, single
from headgate.errors import CorruptState, InvalidRule
from headgate.lazy import lazy_property
from headgate.limit_syntax import parse

_NEVER = -1
_OUTSIDE = -2
_LOCKED = -3

MANY = 1024  # questions about several charges that are remembered
TOLD, COMMIT, AHEAD = 0, 1, 2  # what becomes of several charges: nothing; kept; asked ahead of a commit elsewhere


class RedisRequest(NamedTuple):
    packed: bytes
    script: Script | None  # to be loaded if the server does not know it
    tag: bytes = b""  # what the cluster's slot is reckoned from
    # Of its reply, what to ask so that nothing stays charged or held for a caller who has left meanwhile.
    undo: Callable[[Any], list[RedisRequest]] | None = None
    place: QueuePlace | None = None  # of a cancellation

    @property
    def matters(self) -> bool:
        """Whether its reply must be heard, also if nobody waits for it any more."""
        return self.undo is not None or self.place is not None


def command(*words: bytes | str | int | float) -> bytes:
    """One Redis command."""
    return b"*%d\r\n%b" % (len(words), bulks(words))


def bulks(words: Sequence[bytes | str | int | float]) -> bytes:
    return b"".join(bulked(*words))


def bulked(*words: bytes | str | int | float) -> list[bytes]:
    return [bulk(word if isinstance(word, bytes) else str(word).encode()) for word in words]


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def facts(reply: list[int]) -> Outcome:
    """The server's seven numbers, as the model would have given them."""
    allowed, remaining, retry_us, reset_us, delay_us, at_us, mark = reply
    return allowed == 1, remaining, None if retry_us == _NEVER else retry_us, reset_us, delay_us, at_us, mark


def refunded(reply: list[int]) -> Outcome:
    """How things stand after a refund."""
    return facts(reply[:7])


def each_facts(reply: Any, count: int) -> Iterable[Any]:
    """The answer to takes of so many keys: for each its facts, or an error."""
    if reply.__class__ is not list:
        return [reply] * count
    return [facts(reply)] if count == 1 else many_facts(reply)


def many_facts(reply: list[Any]) -> list[Any]:
    """The answer to takes of many keys: seven numbers for each, or an error in the first one's place."""
    allowed, remaining, retry_us, *rest = (reply[column::7] for column in range(7))
    if _NEVER in retry_us:
        retry_us = [None if each == _NEVER else each for each in retry_us]
    found: list[Any] = list(zip([each == 1 for each in allowed], remaining, retry_us, *rest, strict=True))
    if allowed.count(1) + allowed.count(0) != len(allowed):
        return [facts if said.__class__ is int else said for facts, said in zip(found, allowed, strict=True)]
    return found


def outside(reply: list[int]) -> int | None:
    """The server's time, if it lies outside of the calendar that was sent."""
    return reply[1] if reply[0] == _OUTSIDE else None


def all_outside(reply: list[Any]) -> int | None:
    """The same of several charges."""
    return None if reply[0].__class__ is int else outside(reply[0])


class RequestBuilder:
    """Everything that can be asked about one limit, on its terms."""

    def __init__(self, limit: Limit, name: str, prefix: str, terms: ChargeOptions | None = None) -> None:
        self.limit = limit
        self.name: str = name
        self._prefix = prefix
        self.head: bytes = redis_keys.head(prefix, limit.algorithm, name)
        self.aside: bool = terms is not None and terms.aside
        self.ruled: bool = terms is not None and not terms.plain  # a charge by itself is more than a take
        # What the script must know beside the charges, None if nothing: its models, and what it is kept under.
        self.terms: ChargeOptions | None = None if terms is None or terms.silent else terms
        self.plainly: str | None = (
            limit.algorithm if self.terms is None else None
        )  # the algorithm, if only a count is looked at
        self.models: tuple[str, ...] = (limit.algorithm,)
        self._beside: list[bytes] = []
        self._said: tuple[bytes, ...] = (bulk(b""),)
        if self.terms is not None:
            self._say(self.terms, prefix)
        self.retunes: bool = limit.algorithm in ALGORITHMS and ALGORITHMS[limit.algorithm].retune is not None
        self.calendar: bool = limit.algorithm == "fixed_window" and limit.args[1] == 0
        self._numbers = numbers(limit, name)
        self._args = bulks(self._numbers)
        self._one = self._args + bulk(b"1")
        self._algorithm = bulk(limit.algorithm.encode())
        self._around = b"$%%d\r\n%b%%b}\r\n" % self.head.replace(b"%", b"%%"), len(self.head) + 1

    def _say(self, terms: ChargeOptions, prefix: str) -> None:
        letters = "a" if terms.aside else ""
        numbers: tuple[int, ...] = ()
        if terms.lockout is not None:
            letters, numbers = f"{letters}l", terms.lockout
            self.models = (*self.models, "lockout")
            self._beside.append(redis_keys.head(prefix, "lockout", terms.rule))
        if terms.overrides:
            letters = f"{letters}o"
            self._beside.append(self.head_of_override)
        self._said = tuple(bulked(letters, *numbers))

    @property
    def head_of_override(self) -> bytes:
        return redis_keys.head(self._prefix, "override", "" if self.terms is None else self.terms.rule)

    def under(self, limit: Limit) -> RequestBuilder:
        """The same count under another limit of its algorithm."""
        return RequestBuilder(limit, self.name, self._prefix)

    @lazy_property
    def _take(self) -> tuple[Script, bytes, int]:
        """A take of one unit: the script, the bytes around the caller's key, and how many of the key are ours."""
        script = single("take", self.limit.algorithm)
        known = self.key("")
        start = b"*%d\r\n%b" % (4 + len(self.limit.args), bulks(("EVALSHA", script.sha, 1)))
        return script, b"%b$%%d\r\n%b%%b}\r\n%b" % (start, known[:-1].replace(b"%", b"%%"), self._args), len(known)

    def key(self, key: str) -> bytes:
        return redis_keys.tagged(self.head, key)

    def decide(self, key: str, cost: int, patience_us: int | None, now_us: int) -> RedisRequest:
        script, around, known = self._take
        if cost == 1 and patience_us is None and not self.calendar:
            name = redis_keys.escaped(key)
            return RedisRequest(around % (known + len(name), name), script, name)
        cost = min(cost, EXACT)  # more can never pass either
        if patience_us is None:
            return self._evalsha(script, key, *self.args(now_us), cost, -1)
        question = self._evalsha(script, key, *self.args(now_us), cost, patience_us)
        return question._replace(undo=partial(self._cancel, key, cost))

    def _cancel(self, key: str, cost: int, reply: list[int]) -> list[RedisRequest]:
        """What gives a reservation back."""
        return [cancel((self, key, cost), facts(reply))] if reply[0] == 1 and cost else []

    @lazy_property
    def _many(self) -> tuple[Script, bytes, bytes, int]:
        """Takes of many keys: the script, its words, the bytes around a key, and how many of the key are ours."""
        script = single("take_many", self.limit.algorithm)
        return script, bulks(("EVALSHA", script.sha)), *self._around

    def decide_each(self, keys: Sequence[str], costs: Sequence[int]) -> RedisRequest:
        """Takes of one or several keys, each by itself, in one question. Not for a calendar's windows."""
        return self.decide(keys[0], costs[0], None, 0) if len(keys) == 1 else self.decide_many(keys, costs)

    def decide_many(self, keys: Sequence[str], costs: Sequence[int]) -> RedisRequest:
        script, start, around, known = self._many
        count = len(keys)
        last = b"" if costs.count(1) == count else bulks([min(cost, EXACT) for cost in costs])
        words = 3 + count + len(self.limit.args) + (count if last else 0)
        named = [around % (known + len(name), name) for name in redis_keys.all_escaped(keys)]
        start = b"*%d\r\n%b%b" % (words, start, bulk(b"%d" % count))
        return RedisRequest(b"".join([start, *named, self._args, last]), script)

    def charge(self, cost: int, now_us: int) -> bytes:
        """One of several charges: algorithm, cost, and the limit's own numbers."""
        return b"%b%b%b" % (self._algorithm, bulk(b"%d" % cost), self._numbers_at(now_us))

    def named(self, escaped: bytes) -> bytes:
        """The count's key, as a word."""
        around, known = self._around
        return around % (known + len(escaped), escaped)

    def taken(self, cost: int, now_us: int) -> bytes:
        """One of several charges that are alike: the limit's own numbers, and the cost."""
        if cost == 1 and not self.calendar:
            return self._one
        return self._numbers_at(now_us) + bulk(b"%d" % min(cost, EXACT))

    def part(self, key: str, count: int) -> tuple[list[bytes], list[bytes]]:
        """What comes before so many charges of one rule: keys, and words."""
        return [redis_keys.tagged(head, key) for head in self._beside], [bulk(b"%d" % count), *self._said]

    def _numbers_at(self, now_us: int) -> bytes:
        return bulks(self.args(now_us)) if self.calendar else self._args

    def args(self, now_us: int) -> tuple[int | float | str, ...]:
        return resolve(self.limit, now_us).args if self.calendar else self._numbers

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool, now_us: int) -> RedisRequest:
        script = single("refund", self.limit.algorithm)
        question = self._evalsha(script, key, units, int(cancel), *receipt, *self.args(now_us))
        return question._replace(place=QueuePlace.of(self.key(key), receipt)) if cancel else question

    def retune(self, key: str) -> RedisRequest:
        return self._evalsha(single("retune", self.limit.algorithm), key, *self._numbers)

    def reset(self, key: str) -> RedisRequest:
        """The count goes, and a lockout with it; an override is no count, and stays."""
        locked = self._beside[:1] if "lockout" in self.models else []
        names = [self.key(key), *(redis_keys.tagged(head, key) for head in locked)]
        return RedisRequest(command("UNLINK", *names), None, redis_keys.escaped(key))

    def slots(self, verb: str, key: str, *words: int | str) -> RedisRequest:
        return self._evalsha(bare("slots", "slots"), key, verb, *self.limit.args, *words)

    def acquire(self, key: str, ticket: int | None, wait: bool) -> RedisRequest:
        question = self.slots("acquire", key, "" if ticket is None else ticket, int(wait))
        return question._replace(undo=partial(self._release, key))

    def _release(self, key: str, reply: list[int]) -> list[RedisRequest]:
        """What gives a slot back, or a ticket."""
        told, ticket = slot(reply)
        if told[ALLOWED]:
            return [self.slots("release", key, told[MARK])]
        return [] if ticket is None else [self.slots("leave", key, ticket)]

    def _evalsha(self, script: Script, key: str, *words: int | float | str) -> RedisRequest:
        return RedisRequest(
            command("EVALSHA", script.sha, 1, self.key(key), *words), script, redis_keys.escaped(key)
        )


def numbers(limit: Limit, name: str) -> tuple[int | float | str, ...]:
    """What a script reads of a limit whose counts have this name. A pace is kept with a state only if another
    limit could come to the name: not if the counts are named after this very limit."""
    if not isinstance(limit, TokenBucket):
        return limit.args
    return (*limit.args[:-1], "" if name == limit.text else f"{limit.pace}{_named_after(name)}")


def _named_after(name: str) -> int | str:
    """The pace of the limit whose text the name is."""
    try:
        limit = parse(name)
    except InvalidRule:
        return ""
    return limit.pace if isinstance(limit, TokenBucket) and limit.text == name else ""


Charged = tuple[RequestBuilder, str, int]


def together(
    charges: Sequence[Charged], patience_us: int | None, now_us: int, commit: int = COMMIT
) -> RedisRequest:
    """Several charges in one question; `commit` says what becomes of them."""
    if patience_us is None and commit == COMMIT and _alike(charges):
        if charges[0][0].limit.algorithm == "fixed_window":  # some windows are a calendar's, and change
            return _together_alike(charges, now_us)
        return _known_together(tuple(charges))
    script = several("take_all", {name for questions, _, _ in charges for name in questions.models})
    named: list[bytes] = []
    words = bulked(-1 if patience_us is None else patience_us, commit)
    count = len(words)
    for part in parts(charges):
        first, key, _ = part[0]
        beside, said = first.part(key, len(part))
        named += beside
        words += said
        count += len(said)
        for questions, key, cost in part:
            named.append(questions.key(key))
            words.append(questions.charge(min(cost, EXACT), now_us))
            count += 2 + len(questions.limit.args)
    start = bulked("EVALSHA", script.sha, len(named))
    packed = b"".join([b"*%d\r\n" % (count + len(start) + len(named)), *start, *map(bulk, named), *words])
    undo = partial(_cancel_all, charges) if patience_us is not None and commit == COMMIT else None
    return RedisRequest(packed, script, redis_keys.escaped(charges[0][1]), undo)


def refund(charge: Charged, told: Outcome, cancel: bool) -> RedisRequest:
    """What gives back a charge that passed, by the numbers of the limit that decided."""
    questions, key, cost = charge
    by = questions.under(told.limit) if isinstance(told, OverriddenOutcome) else questions
    return by.refund(key, cost, Receipt.of(told, cost), cancel, told[AT_US])


def cancel(charge: Charged, told: Outcome) -> RedisRequest:
    """The same for a place in a queue."""
    return refund(charge, told, cancel=True)


def _cancel_all(charges: Sequence[Charged], reply: list[Any]) -> list[RedisRequest]:
    """What gives back reservations that were made together, the last one first."""
    if all_outside(reply) is not None:
        return []
    told = list(zip(charges, all_facts(reply, charges), strict=True))
    if not all(one[ALLOWED] or questions.aside for (questions, _, _), one in told):
        return []
    return [cancel(charge, one) for charge, one in reversed(told) if one[ALLOWED] and charge[2]]


def _alike(charges: Sequence[Charged]) -> bool:
    """Whether nothing but their counts is looked at, and all are of one algorithm: a smaller script decides."""
    first = charges[0][0].plainly
    return first is not None and [asked.plainly for asked, _, _ in charges].count(first) == len(charges)


def _together_alike(charges: Sequence[Charged], now_us: int) -> RedisRequest:
    names = redis_keys.all_escaped([key for _, key, _ in charges])
    script, start = _alike_start(charges[0][0].limit.algorithm, len(charges), len(charges[0][0].limit.args))
    named = [asked.named(name) for (asked, _, _), name in zip(charges, names, strict=True)]
    words = [asked.taken(cost, now_us) for asked, _, cost in charges]
    return RedisRequest(b"".join([start, *named, *words]), script, names[0])


@lru_cache(maxsize=MANY)
def _known_together(charges: tuple[Charged, ...]) -> RedisRequest:
    """The same charges have the same bytes, and to pack them costs more than all else that is done about them."""
    return _together_alike(charges, 0)


@cache
def _alike_start(algorithm: str, count: int, width: int) -> tuple[Script, bytes]:
    script = single("take_together", algorithm)
    return script, b"*%d\r\n%b" % (3 + count * (2 + width), bulks(("EVALSHA", script.sha, count)))


def all_facts(reply: list[Any], charges: Sequence[Charged]) -> list[Outcome]:
    """The answer to several charges: one row of numbers where all that are alike pass, or a row for each."""
    if reply[0].__class__ is int:
        at_us, *row = reply
        told = zip(row[::4], row[1::4], row[2::4], row[3::4], strict=True)
        return [(True, left, 0, reset_us, delay_us, at_us, mark) for left, reset_us, delay_us, mark in told]
    return [_facts(one, questions, key) for one, (questions, key, _) in zip(reply, charges, strict=True)]


def _facts(reply: list[Any], questions: RequestBuilder, key: str) -> Outcome:
    if reply[0] == _LOCKED:
        return LockedOutcome(facts(reply))
    if len(reply) == 7:
        return facts(reply)
    *numbers, text = reply
    try:
        return overrides.told(facts(numbers), questions.limit, text.decode())
    except (InvalidRule, UnicodeDecodeError) as error:
        override = redis_keys.tagged(questions.head_of_override, key).decode()
        raise CorruptState(
            f"The override at {override} cannot be read: {error} Set it again, or unset it."
        ) from None


def slot(reply: list[int]) -> Slot:
    """The answer to one who would acquire: the facts, and a ticket if there is one."""
    return Slot(facts(reply[:7]), reply[7] if len(reply) > 7 else None)


def renewed(reply: list[int]) -> int | None:
    return reply[1] if reply[0] else None


def member(prefix: str, verb: str, member_id: str, ttl_us: int = 0) -> RedisRequest:
    """What a process says that shares our limits: it lives (beat), or it leaves."""
    script, key = bare("membership"), redis_keys.members(prefix)
    return RedisRequest(command("EVALSHA", script.sha, 1, key, verb, member_id, ttl_us), script, key)
