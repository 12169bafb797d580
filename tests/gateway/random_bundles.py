"""Rulebooks of every algorithm at random, and what the Redis engine would put on the wire for them."""

import re
from dataclasses import replace

from hypothesis import strategies as st

from headgate.algorithms.limit import Limit
from headgate.algorithms.lockout import Lockout
from headgate.enforcement.call_plan import charge_options_of, counter_names, limit_cases
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder
from headgate.limit_syntax import parse_all
from headgate.rules.condition import Test
from headgate.rules.keys import Dimension
from headgate.rules.rule import Choice, Limits, Modes, Prefetch, Rule, Rulebook

NOW_US = 1_795_000_000_000_000

LIMIT_TEXTS = (
    "1/s", "10/s burst 20", "7/hour", "3/7s burst 2", "5/minute fixed", "9/day fixed in Asia/Shanghai", "1/s log",
    "1000/month fixed in Europe/Berlin", "4/week fixed", "600/minute sliding", "600/minute sliding cells 60",
    "5/s queue 10", "5/s queue 10 nodelay", "2/s queue 4 delay 2", "10/s smooth", "3/7s smooth warmup 3s",
    "1/s; 500/hour fixed", "2/s; 9/hour log; 600/minute sliding",
)  # fmt: skip


def _fresh_limits(text: str) -> Limits:
    """A tuple of its own each time, as the loader makes them."""
    return tuple(limit for limit in parse_all(text)) if text else ()


COUNTED = st.sampled_from(("", *LIMIT_TEXTS)).map(_fresh_limits)
CASES = st.lists(
    st.tuples(st.sampled_from(["free", "pro*", "7"]).map(lambda word: Test("plan", (word,))), COUNTED),
    max_size=2,
    unique_by=lambda case: str(case[0].expected),
).map(tuple)
CHOICES: st.SearchStrategy[Choice[Limits]] = st.builds(Choice, COUNTED, CASES)
COSTS: tuple[Choice[int | str] | None, ...] = (None, Choice(2), Choice("units"))
SLOTS: st.SearchStrategy[Choice[Limits]] = st.sampled_from(["3 slots", "20 slots ttl 5s"]).map(
    lambda text: Choice(_fresh_limits(text))
)


RULES = st.builds(
    lambda limit, **fields: Rule(name="", limit=limit, **fields),
    st.one_of(CHOICES, CHOICES, CHOICES, SLOTS),
    key=st.sampled_from(
        [(), (Dimension.parse("plan"),), (Dimension.parse("user"), Dimension.parse("address/24"))]
    ),
    candidate=st.none() | CHOICES,
    cost=st.sampled_from(COSTS),
    lockout=st.sampled_from([None, None, Lockout(5, 60_000_000, 3_600_000_000)]),
    max_pause_us=st.sampled_from([None, None, 3_600_000_000]),
    deadline=st.sampled_from([None, 0.05]),
    prefetch=st.sampled_from([None, Prefetch(100_000), Prefetch(100_000, 500)]),
    mode=st.sampled_from([Modes(), Modes(0, 10_000)]),
)


def _book(rules: list[Rule]) -> Rulebook:
    return Rulebook(rules=tuple(replace(rule, name=f"r{number}") for number, rule in enumerate(rules)))


BOOKS = st.lists(RULES, max_size=4).map(_book)


def engine_requests(book: Rulebook) -> list[RequestBuilder]:
    """An engine's questions about each limit that a rule of the book may choose."""
    builders = []
    for rule in book.rules:
        for candidate in (False, True):
            terms = charge_options_of(rule, "candidate" if candidate else None)
            for _, limits in limit_cases(rule, candidate):
                names = counter_names(rule, limits, candidate)
                pairs: list[tuple[Limit, str]] = list(zip(limits, names, strict=True))
                builders += [RequestBuilder(limit, name, "hg", terms) for limit, name in pairs]
    return builders


def command_words(question: RedisRequest) -> list[str]:
    """A command as the server reads it."""
    words, packed = [], question.packed
    at = packed.index(b"\r\n") + 2
    while at < len(packed):
        size = re.compile(rb"\$(\d+)\r\n").match(packed, at)
        assert size is not None
        words.append(packed[size.end() : size.end() + int(size[1])].decode("utf-8", "surrogatepass"))
        at = size.end() + int(size[1]) + 2
    return words
