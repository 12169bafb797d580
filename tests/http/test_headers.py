"""Header fields: the exact text of each form, and valid structured fields."""

import re
from typing import NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Charge, InvalidRule, Limiter, ManualClock
from headgate.algorithms import algorithm
from headgate.algorithms.decision import Decision, JointDecision, Verdict
from headgate.algorithms.limit import SECOND, UNLIMITED, Limit
from headgate.calendar import resolve
from headgate.http.headers import Fields, headers, is_uncounted, per_second, quota, retry_after
from headgate.limit_syntax import parse
from headgate.rules.rule import Headers

FORMS = ("draft-11", "legacy", "envoy", "spring", "off")
START_US = 1_700_000_000 * SECOND

LIMITS = {  # quota, window in seconds, whole units a second
    "10/minute": (10, 60, None),
    "100/s burst 200": (200, 2, 100),
    "100/s burst 50": (50, 1, 100),
    "7/s burst 10": (10, 2, 7),
    "1000/day fixed": (1000, 86400, None),
    "1000/month fixed": (1000, 31 * 86400, None),
    "1000/day fixed in Asia/Shanghai": (1000, 86400, None),
    "1000/week fixed": (1000, 7 * 86400, None),
    "1000/year fixed": (1000, 366 * 86400, None),
    "10/100ms fixed": (10, 1, 100),
    "600/minute sliding": (600, 60, 10),
    "90/90s log": (90, 90, 1),
    "10/minute queue 5": (6, 37, None),
    "10/s queue 0 nodelay": (1, 1, 10),
    "20 slots": (20, None, None),
    "5/s smooth": (5, 1, 5),
    "5/s smooth burst 2500ms": (15, 3, 5),
    "100/s smooth warmup 5s": (100, 1, 100),
    "1/minute smooth": (1, 60, None),
    "9_007_199_254_740_991/s burst 1": (1, 1, 10**15 - 1),
    "1_000_000_000_000_000/s fixed": (10**15 - 1, 1, 10**15 - 1),
}


@pytest.mark.parametrize(("text", "expected"), LIMITS.items(), ids=list(LIMITS))
def test_quota_window_and_rate_of_a_limit(text: str, expected: tuple[int, int | None, int | None]) -> None:
    limit = parse(text)
    assert (quota(limit), limit.window_seconds, per_second(limit)) == expected


class StubDecision(Decision):
    """A decision whose verdicts were given."""

    def __init__(self, *verdicts: Verdict) -> None:
        refused = [verdict for verdict in verdicts if not verdict.allowed]
        never = any(verdict.retry_after_us is None for verdict in refused)
        wait_us = None if never else max((verdict.retry_after_us or 0 for verdict in refused), default=0)
        super().__init__(
            (not refused, 0, wait_us, 0, 0, 0, 0), Limiter("1/s").engine.meter(parse("1/s"), "x"), "k", 1
        )
        self._verdicts = verdicts

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self._verdicts


def passed(text: str, left: int, reset: float, rule: str | None = None, cost: int = 1) -> Verdict:
    return Verdict(True, left, 0, round(reset * SECOND), 0, START_US, 0, parse(text), "raw-key", cost, rule)


def refused(
    text: str, left: int, wait: float | None, reset: float, rule: str | None = None, cost: int = 1
) -> Verdict:
    wait_us = None if wait is None else round(wait * SECOND)
    return Verdict(False, left, wait_us, round(reset * SECOND), 0, START_US, 0, parse(text), "raw-key", cost, rule)


ALLOWED = StubDecision(passed("100/minute", 50, 30, "burst"), passed("1000/day fixed", 900, 43000.2, "daily"))
REFUSED = StubDecision(
    refused("10/minute", 0, 5.2, 60, "login", cost=2), passed("1000/day fixed", 900, 43000, "daily")
)
NEVER = StubDecision(refused("10/minute", 10, None, 0, "login", cost=11))
SEVERAL = StubDecision(refused("10/s", 0, 0.1, 1, "api"), refused("500/hour fixed", 0, 1800, 1800, "api"))
HELD = StubDecision(passed("20 slots", 7, 30, "room"))
FULL = StubDecision(refused("20 slots", 0, 12.5, 30, "room"))
UNNAMED = StubDecision(passed("100/s burst 200", 199, 0.01), passed("100/s burst 200", 3, 1.97))


@pytest.mark.parametrize(
    ("decision", "policy", "count", "wait"),
    [
        (ALLOWED, '"burst";q=100;w=60, "daily";q=1000;w=86400', '"burst";r=50;t=30, "daily";r=900;t=43001', None),
        (REFUSED, '"login";q=10;w=60, "daily";q=1000;w=86400', '"login";r=0;t=6, "daily";r=900', "6"),
        (NEVER, '"login";q=10;w=60', '"login";r=10;t=0', None),
        (SEVERAL, '"api";q=10;w=1, "api#1";q=500;w=3600', '"api";r=0;t=1, "api#1";r=0;t=1800', "1800"),
        (HELD, '"room";q=20;qu="concurrent-requests"', '"room";r=7', None),
        (FULL, '"room";q=20;qu="concurrent-requests"', '"room";r=0', "13"),
        (
            UNNAMED,
            '"100/s burst 200";q=200;w=2, "100/s burst 200#1";q=200;w=2',
            '"100/s burst 200";r=199;t=1, "100/s burst 200#1";r=3;t=2',
            None,
        ),
    ],
)
def test_the_draft(decision: StubDecision, policy: str, count: str, wait: str | None) -> None:
    expected = [("RateLimit-Policy", policy), ("RateLimit", count), *_wait(wait)]
    assert headers(decision) == headers(decision, "draft-11") == expected


@pytest.mark.parametrize(
    ("decision", "limit", "left", "reset", "wait"),
    [
        (ALLOWED, "100", "50", "30", None),
        (REFUSED, "10", "0", "6", "6"),
        (NEVER, "10", "10", "0", None),
        (SEVERAL, "500", "0", "1800", "1800"),
        (UNNAMED, "200", "3", "2", None),
    ],
)
def test_the_old_fields_describe_the_nearest_limit(
    decision: StubDecision, limit: str, left: str, reset: str, wait: str | None
) -> None:
    expected = [("X-RateLimit-Limit", limit), ("X-RateLimit-Remaining", left), ("X-RateLimit-Reset", reset)]
    assert headers(decision, "legacy") == [*expected, *_wait(wait)]


def test_the_deciding_limit_has_the_smallest_share_left() -> None:
    decision = StubDecision(passed("10/s", 5, 0.5, "often"), passed("1000/day fixed", 100, 600, "daily"))
    assert headers(decision, "legacy")[:2] == [("X-RateLimit-Limit", "1000"), ("X-RateLimit-Remaining", "100")]
    assert headers(decision, "spring")[:2] == [
        ("X-RateLimit-Remaining", "100"),
        ("X-RateLimit-Burst-Capacity", "1000"),
    ]
    assert headers(decision, "envoy")[:2] == [
        ("X-RateLimit-Limit", '1000, 10;w=1;name="often", 1000;w=86400;name="daily"'),
        ("X-RateLimit-Remaining", "100"),
    ]


def test_unlimited_rules_and_shadows_have_no_fields() -> None:
    shadow = refused("1/hour", 0, 1800, 3600, "tried")._replace(shadow_kind="shadow")
    free = passed("1/s", 1, 0, "staff")._replace(limit=UNLIMITED)
    decision = StubDecision(shadow, passed("10/s", 5, 0.5, "often"), free)
    decision.outcome = (True, 0, 0, 0, 0, 0, 0)
    assert headers(decision) == [("RateLimit-Policy", '"often";q=10;w=1'), ("RateLimit", '"often";r=5;t=1')]
    assert headers(StubDecision(free)) == []


def test_envoys_form_lists_every_policy() -> None:
    assert headers(REFUSED, "envoy") == [
        ("X-RateLimit-Limit", '10, 10;w=60;name="login", 1000;w=86400;name="daily"'),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "6"),
        ("Retry-After", "6"),
    ]
    assert headers(HELD, "envoy")[0] == ("X-RateLimit-Limit", '20, 20;name="room"')


def test_springs_form() -> None:
    decision = StubDecision(passed("10/s burst 20", 13, 0.7, "route", cost=7))
    assert headers(decision, "spring") == [
        ("X-RateLimit-Remaining", "13"),
        ("X-RateLimit-Burst-Capacity", "20"),
        ("X-RateLimit-Replenish-Rate", "10"),
        ("X-RateLimit-Requested-Tokens", "7"),
    ]


def test_a_fractional_rate_has_no_field_in_springs_form() -> None:
    assert headers(REFUSED, "spring") == [
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Burst-Capacity", "10"),
        ("X-RateLimit-Requested-Tokens", "2"),
        ("Retry-After", "6"),
    ]


@pytest.mark.parametrize("form", ["draft-11", "legacy", "envoy", "spring", "off"])
def test_nothing_is_written_of_a_call_that_was_not_counted(form: Headers) -> None:
    uncounted = passed("9/s", 0, 0, "a")
    assert headers(StubDecision(uncounted), form) == []
    counted = passed("9/s", 3, 1, "b")
    assert headers(StubDecision(uncounted, counted), form) == headers(StubDecision(counted), form)


def test_off_leaves_retry_after_only() -> None:
    assert headers(ALLOWED, "off") == []
    assert headers(REFUSED, "off") == [("Retry-After", "6")]


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(
        InvalidRule, match=r'"draft-99" is not a form of headers\. Known are draft-11, legacy, envoy'
    ):
        headers(ALLOWED, "draft-99")  # type: ignore[arg-type]


def test_the_forms_are_those_of_a_rulebook() -> None:
    from headgate.rules.rule import Headers

    assert get_args(Headers) == FORMS
    for form in get_args(Headers):
        headers(ALLOWED, form)


def test_a_call_without_rules_has_no_fields() -> None:
    for form in FORMS:
        assert headers(StubDecision(), form) == []  # type: ignore[arg-type]


def test_a_refusal_without_a_count_has_no_field() -> None:
    """A rule that refuses because the key is missing asked no engine, and no wait can help."""
    decision = StubDecision()
    decision.outcome = (False, 0, None, 0, 0, 0, 0)
    assert headers(decision) == []


def test_it_never_says_to_come_at_once() -> None:
    assert retry_after(StubDecision(refused("10/s", 0, 0.000001, 1))) == 1
    assert retry_after(StubDecision(refused("10/s", 0, 0, 1))) == 1
    assert retry_after(StubDecision(refused("10/s", 0, 1, 1))) == 1
    assert retry_after(StubDecision(refused("10/s", 0, 1.000001, 1))) == 2


def test_names_are_quoted() -> None:
    decision = StubDecision(passed("1/s", 1, 0, 'say "hé"\\\n'))
    assert headers(decision)[1] == ("RateLimit", r'"say \"h?\"\\?";r=1;t=0')
    assert [item.name for item in _list(headers(decision)[1][1])] == ['say "h?"\\?']


def test_the_answers_of_a_limiter() -> None:
    limiter = Limiter("2/minute", clock=ManualClock())
    charges = [Charge("10.0.0.1"), Charge("10.0.0.1", "5/s log")]
    limiter.take_all(charges)
    decision = limiter.take_all(charges)
    assert isinstance(decision, JointDecision)
    assert headers(decision) == [
        ("RateLimit-Policy", '"2/minute";q=2;w=60, "5/s log";q=5;w=1'),
        ("RateLimit", '"2/minute";r=0;t=60, "5/s log";r=3;t=1'),
    ]
    assert headers(limiter.take_all(charges))[1:] == [
        ("RateLimit", '"2/minute";r=0;t=30, "5/s log";r=3;t=1'),
        ("Retry-After", "30"),
    ]


limits = st.sampled_from([parse(text) for text in LIMITS])
times_us = st.integers(0, 400 * 86400 * SECOND) | st.sampled_from([0, 1, SECOND, 10**16])
rules = st.none() | st.text(max_size=20) | st.sampled_from(["login", "items", "x#1"])


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    allowed = draw(st.booleans())
    wait_us = 0 if allowed else draw(st.none() | times_us)
    left, cost = draw(st.integers(0, 2**53)), draw(st.integers(0, 2**53))
    limit, rule = draw(limits), draw(rules)
    return Verdict(allowed, left, wait_us, draw(times_us), 0, START_US, 0, limit, "raw-key-of-ann", cost, rule)


@given(st.lists(verdicts().filter(lambda verdict: not is_uncounted(verdict)), min_size=1, max_size=4))
def test_structured_fields_can_be_parsed(verdicts: list[Verdict]) -> None:
    fields = dict(headers(StubDecision(*verdicts)))
    policies, counts = _list(fields["RateLimit-Policy"]), _list(fields["RateLimit"])
    assert len({item.name for item in policies}) == len(policies) or any("?" in item.name for item in policies)
    wait = int(fields.get("Retry-After", 10**15))
    for policy, count, verdict in zip(policies, counts, verdicts, strict=True):
        assert policy.name == count.name
        assert set(policy.parameters) <= {"q", "w", "qu"}
        assert set(count.parameters) <= {"r", "t"}
        assert 0 <= int(count.parameters["r"]) <= int(policy.parameters["q"])
        assert policy.parameters.get("w", 1) != 0
        assert int(count.parameters.get("t", 0)) <= wait
        assert ("qu" in policy.parameters) == ("slots" in verdict.limit.text) == ("w" not in policy.parameters)


@given(st.lists(verdicts(), max_size=4), st.sampled_from(FORMS))
def test_retry_after_is_on_refusals_that_a_wait_can_help(verdicts: list[Verdict], form: str) -> None:
    decision = StubDecision(*verdicts)
    fields: Fields = headers(decision, form)  # type: ignore[arg-type]
    assert ("Retry-After" in dict(fields)) == (not decision.allowed and decision.retry_after is not None)
    if "Retry-After" in dict(fields):
        assert int(dict(fields)["Retry-After"]) >= max(1, decision.retry_after or 0)


@given(st.lists(verdicts(), max_size=4), st.sampled_from(FORMS))
def test_fields_are_plain_and_reveal_no_key(verdicts: list[Verdict], form: str) -> None:
    for name, value in headers(StubDecision(*verdicts), form):  # type: ignore[arg-type]
        assert re.fullmatch(r"[A-Za-z0-9-]+", name)
        assert re.fullmatch(r"[ -~]+", value)
        assert "raw-key-of-ann" not in value


@given(limits.filter(lambda limit: limit.algorithm not in ("slots", "smooth")), st.integers(0, 10**12), st.data())
def test_calls_within_the_policy_field_are_allowed(limit: Limit, start_us: int, data: st.DataObject) -> None:
    window, state, now_us = limit.window_seconds or 0, None, START_US + start_us
    for _ in range(4):
        limit = resolve(limit, now_us)
        outcome, state = algorithm(limit).decide(limit, state, now_us, quota(limit))
        assert outcome[0], f"{limit} at {now_us}"
        now_us += window * SECOND + data.draw(st.integers(0, 3)) * SECOND


class HeaderItem(NamedTuple):
    name: str
    parameters: dict[str, int | str]


def _list(text: str) -> list[HeaderItem]:
    """A strict reader of the part of RFC 9651 that may occur: a List of Strings with parameters."""
    items = []
    while True:
        name, text = _read_string(text)
        parameters: dict[str, int | str] = {}
        while text.startswith(";"):
            key = re.match(r";([a-z*][a-z0-9_.*-]*)=", text)
            assert key, text
            assert key[1] not in parameters
            text = text[key.end() :]
            if text.startswith('"'):
                parameters[key[1]], text = _read_string(text)
            else:
                number = re.match(r"-?[0-9]{1,15}(?![0-9.])", text)
                assert number, text
                parameters[key[1]], text = int(number[0]), text[number.end() :]
        items.append(HeaderItem(name, parameters))
        if not text:
            return items
        assert text.startswith(", ")
        text = text[2:]


def _read_string(text: str) -> tuple[str, str]:
    match = re.match(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', text)
    assert match, text
    return re.sub(r"\\(.)", r"\1", match[1]), text[match.end() :]


def _wait(seconds: str | None) -> Fields:
    return [] if seconds is None else [("Retry-After", seconds)]
