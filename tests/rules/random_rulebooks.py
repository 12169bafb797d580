"""Books and calls at random, over few enough words that rules often hold, capture and replace each other."""

import random

from hypothesis import strategies as st

from headgate.limit_syntax import parse_all
from headgate.rules.condition import All, AnyOf, Condition, Not, Test
from headgate.rules.keys import Dimension
from headgate.rules.rule import Choice, Limits, Modes, Rule, Rulebook

PATHS = (
    "/", "/a", "/b", "/a/b", "/a/{x}", "/{x}", "/{y}/b", "/*", "/a*", "/**", "/a/**", "/**/b", "/**/{x}",
    "/a/*/**", "/{x}/{y}", "/{x}/**/b", "/*b", "/a*b/**", "/**/a*", "/**/*b/{x}",
)  # fmt: skip
WORDS = ("a", "b", "ab")
GLOBS = ("a*", "*b", "*", "ab*", "*ab", "a*b", "a*ab", "*a*")
NAMES = ("user", "plan", "x", "y", "header.x-plan", "method", "host")

TEXTS = st.lists(st.sampled_from([*WORDS, *GLOBS]), min_size=1, max_size=3, unique=True).map(tuple)
TESTS = st.one_of(
    st.builds(
        Test, st.just("path"), st.lists(st.sampled_from(PATHS), min_size=1, max_size=2, unique=True).map(tuple)
    ),
    st.builds(Test, st.sampled_from(NAMES), TEXTS),
    st.builds(Test, st.sampled_from([*NAMES, "path", "address"]), st.booleans()),
    st.builds(Test, st.just("address"), st.sampled_from([("10.0.0.0/8",), ("fd00::/8", "10.1.0.0/16")])),
)


def _joined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(inner, max_size=3).map(tuple)
    return st.one_of(st.builds(All, several), st.builds(AnyOf, several), st.builds(Not, inner))


CONDITIONS: st.SearchStrategy[Condition] = st.recursive(TESTS, _joined, max_leaves=6)

VALUES: dict[str, list[str]] = {
    "path": ["/", "/a", "/b", "/a/b", "/b/b", "/ab", "/a/a/b", "/a/ab/a", "/c"],
    "method": ["A", "B", "AB"],
    "host": list(WORDS),
    "address": ["10.0.0.1", "10.1.2.3", "192.0.2.7", "fd00::1"],
    **{name: [*WORDS, "", "7", "0"] for name in ("user", "plan", "x", "y", "header.x-plan")},
}
CALLS = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()})

LIMITS: st.SearchStrategy[Limits] = st.sampled_from([(), parse_all("1/s"), parse_all("2/s; 9/hour")])


def _choice(values: st.SearchStrategy[object]) -> st.SearchStrategy[Choice[object]]:
    return st.builds(Choice, values, st.lists(st.tuples(TESTS, values), max_size=2).map(tuple))


@st.composite
def books(draw: st.DrawFn) -> Rulebook:
    """A book; a rule replaces only rules that come after it in some order, so there are no circles."""
    count = draw(st.integers(0, 5))
    order = draw(st.permutations(range(count)))
    rules = {}
    for place, number in enumerate(order):
        later = [f"r{other}" for other in order[place + 1 :]]
        rules[number] = Rule(
            name=f"r{number}",
            limit=draw(_choice(LIMITS)),  # type: ignore[arg-type]
            when=draw(st.none() | CONDITIONS),
            unless=draw(st.none() | st.none() | CONDITIONS),
            key=tuple(draw(st.lists(st.sampled_from(DIMENSIONS), max_size=3, unique=True))),
            missing=draw(st.sampled_from(["skip", "deny", "one"])),
            cost=draw(st.none() | _choice(st.sampled_from([0, 1, 5, "user", "x"]))),  # type: ignore[arg-type]
            mode=draw(st.sampled_from([Modes(), Modes(), Modes(0, 10_000), Modes(0, 0), Modes(3000, 4000)])),
            label=draw(st.none() | st.sampled_from(["calm", "a b/c", "true"])),
            quota_mode=draw(st.booleans()),
            candidate=draw(st.none() | _choice(LIMITS)),  # type: ignore[arg-type]
            replaces=tuple(draw(st.lists(st.sampled_from(later), max_size=2, unique=True))) if later else (),
        )
    return Rulebook(rules=tuple(rules[number] for number in range(count)))


DIMENSIONS = [Dimension.parse(text) for text in ("user", "x", "y", "address/24", "path", "header.x-plan")]


def large_book(seed: int) -> Rulebook:
    """Eighty rules: hundreds of draws are too slow for Hypothesis, so these come from a seed."""
    luck = random.Random(seed)
    rules = [
        Rule(
            name=f"r{number}",
            limit=Choice(()),
            when=_condition(luck, 3),
            unless=_condition(luck, 1) if luck.random() < 0.2 else None,
            key=tuple(luck.sample(DIMENSIONS, luck.randrange(3))),
            missing=luck.choice(("skip", "one")),
            replaces=(f"r{luck.randrange(number)}",) if number and luck.random() < 0.1 else (),
        )
        for number in range(80)
    ]
    luck.shuffle(rules)
    return Rulebook(rules=tuple(rules))


def calls_at_random(seed: int) -> list[dict[str, str]]:
    luck = random.Random(seed)
    return [
        {name: luck.choice(values) for name, values in VALUES.items() if luck.random() < 0.8} for _ in range(50)
    ]


def _condition(luck: random.Random, depth: int) -> Condition:
    parts = [_condition(luck, depth - 1) for _ in range(luck.randrange(1, 4))] if depth else []
    match luck.randrange(6) if depth else luck.randrange(3, 6):
        case 0:
            return AnyOf(tuple(parts))
        case 1 | 2:
            return All(tuple(parts))
        case 3:
            return Test("path", tuple(luck.sample(PATHS, luck.choice((1, 1, 2)))))
        case 4:
            return Test(luck.choice(NAMES), tuple(luck.sample((*WORDS, *WORDS, *GLOBS), luck.choice((1, 2, 3)))))
        case _:
            return Not(parts[0]) if depth else Test(luck.choice(NAMES), luck.random() < 0.5)
