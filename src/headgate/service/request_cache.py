"""What was asked before is not read again: questions, by their very words, and what they charge.

Most of what a check costs is reading: which attributes there are, which rules apply, what their keys are. All of
that follows from the words of the question and the rulebook alone. So a question that is asked for the second time
is kept, with what it charges, and when it is asked in the same words again only the counts are asked.

    Known      a question that meets one count: what it charges, and what never changes of its answer
    Memory     some thousands of questions. It forgets all at once when it is full, or the rulebook is another one

Laws (tests/service/test_request_cache.py): who asks again gets the answer that a service without memory gives; and
what does not follow from the words alone (counts of this process, slots, shares among members) is not kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

import msgspec

from headgate.algorithms.decision import ALLOWED, REMAINING, RESET_AFTER_US, Decision, Outcome
from headgate.algorithms.limit import SECOND, UNLIMITED
from headgate.enforcement.call_plan import CallPlan, CompiledRulebook
from headgate.enforcement.rule_decision import RuleDecision
from headgate.engines.memory.async_engine import AsyncMemoryMeter
from headgate.http.headers import headers, quota, window_seconds
from headgate.service.asgi import Pairs, encoded

MANY = 4096
LONG = 1024  # bytes of a question that is kept


class CachedCheck:
    """A question that meets one count."""

    __slots__ = ("_form", "_head", "_most", "_name", "_policy", "_timed", "at_once", "awaited", "call")

    def __init__(self, call: CallPlan) -> None:
        self.call: CallPlan = call
        meter, key, cost = call.charges[0]
        rule = call.heads[0][0]
        self.awaited: Callable[[], Awaitable[Outcome]] = partial(meter.decide, key, cost)
        self.at_once: Callable[[], Outcome] | None = None  # if its engine need not be waited for
        if isinstance(meter, AsyncMemoryMeter):
            self.at_once = partial(meter.meter.decide, key, cost)
        self._form = call.ruling.book.headers
        self._most, self._timed = quota(meter.limit), window_seconds(meter.limit) is not None
        part = Decision((True, 0, 0, 0, 0, 0, 0), meter, key, cost)
        part.rule = rule
        self._policy = encoded(headers(part, "draft-11"))[0]
        self._name = self._policy[1].partition(b";q=")[0]
        self._head = f'{{"allowed":true,"rule":{_quoted(rule)},"limit":{_quoted(meter.limit.text)},"remaining":'

    def decision(self, facts: Outcome) -> RuleDecision:
        return self.call.decision((facts,))

    def document(self, facts: Outcome) -> bytes:
        """The JSON of an answer that let it pass."""
        _, remaining, _, reset_us, delay_us, _, _ = facts
        delay = delay_us / SECOND if delay_us else "0.0"
        head = f'{self._head}{remaining},"retry_after":0.0,"reset_after":{reset_us / SECOND!r}'
        return f'{head},"delay":{delay},"degraded":false}}'.encode()

    def fields(self, facts: Outcome) -> Pairs:
        """The header fields of an answer that let it pass."""
        if self._form != "draft-11":
            return encoded(headers(self.decision(facts), self._form))
        until = b";t=%d" % -(-facts[RESET_AFTER_US] // SECOND) if self._timed else b""
        left = max(0, min(facts[REMAINING], self._most))
        return [self._policy, (b"RateLimit", b"%b;r=%d%b" % (self._name, left, until))]

    @classmethod
    def of(cls, call: CallPlan) -> CachedCheck | None:
        """None if what it is answered does not follow from one count."""
        if not call.straight or len(call.charges) != 1 or call.heads[0][1] is not None:
            return None
        return None if call.charges[0][0].limit is UNLIMITED else cls(call)


K = TypeVar("K")


class RequestCache(Generic[K]):
    """What is known of questions that were asked under one rulebook."""

    def __init__(self) -> None:
        self._known: dict[Hashable, K] = {}
        self._once: set[int] = set()  # hashes of what was asked once
        self._ruling: CompiledRulebook | None = None

    def get(self, words: Hashable, ruling: CompiledRulebook) -> K | None:
        if ruling is not self._ruling:
            self._known.clear()
            self._once.clear()
            self._ruling = ruling
        return self._known.get(words)

    def again(self, words: Hashable) -> bool:
        """Whether it is asked for the second time, and so is worth to be kept. Most questions of some gateways
        never come again. (Two that hash alike are taken for one: then one is kept too early.)"""
        asked = hash(words)
        if asked in self._once:
            return True
        if len(self._once) >= MANY:
            self._once.clear()
        self._once.add(asked)
        return False

    def keep(self, words: Hashable, ruling: CompiledRulebook, known: K | None) -> None:
        """Keep it, if it is known and the rulebook is the same."""
        if known is None or ruling is not self._ruling:
            return
        if len(self._known) >= MANY:
            self._known.clear()
        self._known[words] = known


def plain(facts: Outcome) -> bool:
    """Whether it passed, and there is nothing else to tell: no fallback, no limit of the key's own."""
    return type(facts) is tuple and facts[ALLOWED]


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
