"""The bundle's laws, for any book: it is the book, and what stands beside it is what the Redis engine goes by."""

import json
from bisect import bisect_right
from datetime import UTC, datetime
from hashlib import sha1
from itertools import combinations
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.algorithms.decision import Receipt
from headgate.algorithms.fixed_window import FixedWindow
from headgate.engines.redis.protocol import membership_request
from headgate.engines.redis.script_assembly import algorithm_script, mixed_script, standalone_script
from headgate.engines.redis.take_all import joint_request
from headgate.gateway.bundle import compile_bundle, script_texts
from headgate.http.headers import per_second, quota
from headgate.limit_syntax import parse
from headgate.rules import load, serialization
from headgate.rules.distribution.rulebook_version import GATEWAY_FIELDS
from headgate.rules.rule import Rulebook
from tests.gateway.random_bundles import BOOKS, NOW_US, command_words, engine_requests

ZONES = sorted(available_timezones())
THEN = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp())
END = int(datetime(2057, 1, 1, tzinfo=UTC).timestamp())


def made(text: str) -> dict[str, Any]:
    return compile_bundle(load.parse(text), NOW_US)


@given(BOOKS)
def test_a_bundle_without_its_gateway_fields_is_the_rulebook(book: Rulebook) -> None:
    bundle = json.loads(json.dumps(compile_bundle(book, NOW_US)))
    assert set(bundle) >= set(GATEWAY_FIELDS) - {"texts"}
    document = {name: value for name, value in bundle.items() if name not in GATEWAY_FIELDS}
    assert document == serialization.document(book) | {"headers": book.headers}


@given(BOOKS)
def test_every_limit_has_its_entry_and_nothing_else_has(book: Rulebook) -> None:
    limits = compile_bundle(book, NOW_US)["limits"]
    assert set(limits) == {questions.limit.text for questions in engine_requests(book)}
    for text, entry in limits.items():
        limit = parse(text)
        assert entry["algorithm"] == limit.algorithm
        assert (entry["quota"], entry["fresh"]) == (quota(limit), limit.units_at_once)
        assert entry.get("window") == limit.window_seconds
        assert entry.get("per_second") == per_second(limit)
        assert None not in entry.values()
        assert ("drain" in entry) is limit.prefetchable
        assert entry.get("drain", [0, 1]) == list(limit.unit_drain)
        assert ("flow" in entry) is (limit.units_per_second is not None)
        calendar = limit if isinstance(limit, FixedWindow) and limit.unit else None
        wanted = None if calendar is None else {"unit": calendar.unit, "zone": calendar.zone}
        assert entry.get("calendar") == wanted


@given(BOOKS)
def test_the_numbers_are_those_that_the_redis_engine_sends(book: Rulebook) -> None:
    limits = compile_bundle(book, NOW_US)["limits"]
    for questions in engine_requests(book):
        entry = limits[questions.limit.text]
        if entry["algorithm"] == "slots":
            words = command_words(questions.acquire("key", None, False))
            sent = words[4 + int(words[2]) : -2]
        else:
            words = command_words(questions.decide("key", 2, None, NOW_US))
            sent = words[3 + int(words[2]) : -2]
        if "calendar" in entry:  # the edges are worked out when it is asked
            assert (sent[:2], len(sent)) == (entry["numbers"][:2], len(entry["numbers"]))
        else:
            assert sent == entry["numbers"]


@given(BOOKS)
def test_every_script_that_the_redis_engine_would_call_is_there(book: Rulebook) -> None:
    scripts = compile_bundle(book, NOW_US)["scripts"]
    shas = set(scripts.values())
    some: dict[tuple[str, ...], Any] = {}
    for questions in engine_requests(book):
        algorithm, paused = questions.limit.algorithm, "_paused" if questions.pause_head else ""
        if algorithm == "slots":
            assert command_words(questions.acquire("key", None, False))[1] == scripts[f"slots{paused}"]
            continue
        assert command_words(questions.decide("key", 2, None, NOW_US))[1] == scripts[f"take {algorithm}"]
        refund = questions.refund("key", 1, Receipt(1, NOW_US, 0, 0, 0), False, NOW_US)
        assert command_words(refund)[1] == scripts[f"refund{paused} {algorithm}"]
        some.setdefault(questions.models, questions)
    for size in (1, 2, 3):
        for chosen in combinations(some.values(), size):
            models = sorted({model for questions in chosen for model in questions.models})
            charges = [(questions, "key", 1) for questions in chosen]
            assert command_words(joint_request(charges, 0, NOW_US))[1] == scripts[" ".join(["take_all", *models])]
            assert command_words(joint_request(charges, None, NOW_US))[1] in shas
    assert command_words(membership_request("hg", "heartbeat", "me"))[1] in shas


@given(BOOKS)
def test_the_script_with_all_of_them_serves_every_call(book: Rulebook) -> None:
    scripts = compile_bundle(book, NOW_US)["scripts"]
    models = {model for questions in engine_requests(book) for model in questions.models} - {"slots"}
    if models - {"lockout", "pause"}:
        assert scripts[" ".join(["take_all", *sorted(models)])] == mixed_script("take_all", models).sha
    else:
        assert not any(name.startswith("take") for name in scripts)


@given(BOOKS)
def test_cases_are_listed_in_their_order(book: Rulebook) -> None:
    bundle = compile_bundle(book, NOW_US)
    for rule in bundle["rules"]:
        chosen = {
            name: list(rule[name]["cases"]) for name in ("limit", "candidate", "cost") if has_cases(rule, name)
        }
        assert bundle["charge_options"][rule["name"]].get("cases", {}) == chosen


def has_cases(rule: dict[str, Any], name: str) -> bool:
    return isinstance(rule.get(name), dict) and "cases" in rule[name]


@given(BOOKS)
def test_every_sha_has_its_text(book: Rulebook) -> None:
    bundle = compile_bundle(book, NOW_US)
    texts = script_texts(bundle)
    assert set(texts) == set(bundle["scripts"].values())
    assert all(sha == sha1(text.encode()).hexdigest() for sha, text in texts.items())


def test_scripts_are_named_by_their_command_and_models() -> None:
    bundle = made("rules: [{name: a, limit: 1/s; 9/hour log, candidate: 3/m fixed}, {name: b, limit: 3 slots}]")
    three = ("fixed_window", "sliding_log", "token_bucket")
    assert bundle["scripts"] == {
        **{
            f"{verb} {name}": algorithm_script(verb, name).sha
            for verb in ("take", "take_together", "refund")
            for name in three
        },
        **{
            f"take_calls {name}": algorithm_script("take_calls", name).sha
            for name in three
            if name != "sliding_log"
        },
        "slots": standalone_script("slots", "slots").sha,
        "membership": standalone_script("membership").sha,
        "write_counts": standalone_script("write_counts").sha,
        "recent_records": standalone_script("recent_records").sha,
        **{
            " ".join(["take_all", *names]): mixed_script("take_all", names).sha
            for size in (1, 2, 3)
            for names in combinations(three, size)
        },
    }


def test_the_bundle_has_the_charge_options_of_each_rule() -> None:
    bundle = made("""
        rules:
          - name: a
            key: user
            missing: skip
            limit: {by: plan, cases: {free: 1/s, "pro*": unlimited}, otherwise: 9/s}
            candidate: {by: user, cases: {ann: 2/s}, otherwise: 8/s}
            lockout: {after: 5, within: 1m, for: 1h}
            deadline: 50ms
          - {name: b, limit: 100/s, prefetch: {for: 100ms, units: 500}}
          - {name: c, limit: 100/s, prefetch: 20ms}
          - {name: d, limit: 3 slots}
    """)
    assert bundle["charge_options"] == {
        "a": {
            "names": ["free", "pro*"],
            "candidate_names": [""],
            "cases": {"limit": ["free", "pro*"], "candidate": ["ann"]},  # the key decides it
            "lockout": [5, 60_000_000, 3_600_000_000],
            "deadline": 0.05,
        },
        "b": {"prefetch": {"hold_us": 100_000, "units": 500}},
        "c": {"prefetch": {"hold_us": 20_000}},
        "d": {},
    }
    assert "unlimited" not in bundle["limits"]


def test_a_bundle_has_only_the_used_time_zones() -> None:
    assert made("rules: [{name: a, limit: 1/s; 9/day}]")["zones"] == {}
    assert made("rules: [{name: a, limit: 9/month fixed}]")["zones"] == {"UTC": [[0, 0]]}
    zones = made("rules: [{name: a, limit: 9/s, candidate: 9/day fixed in Europe/Berlin}]")["zones"]
    assert zones["Europe/Berlin"][:3] == [[0, 3600], [1711846800, 7200], [1729990800, 3600]]


def test_a_book_has_the_same_bundle_all_year() -> None:
    book = load.parse("rules: [{name: a, limit: 9/day fixed in Europe/Berlin}]")
    first, last, then = (
        int(datetime.fromisoformat(when).timestamp()) * 1_000_000
        for when in ("2026-01-01T00:00:00Z", "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z")
    )
    assert compile_bundle(book, first) == compile_bundle(book, last) != compile_bundle(book, then)


AWKWARD = ("Africa/Casablanca", "America/Nuuk", "Antarctica/Troll", "Australia/Lord_Howe", "Europe/Dublin")


@pytest.mark.parametrize("zone", AWKWARD)
def test_clocks_that_are_set_back_for_a_month_or_by_half_an_hour(zone: str) -> None:
    offsets = made(f"rules: [{{name: a, limit: 9/day fixed in {zone}}}]")["zones"][zone]
    starts, place = [start for start, _ in offsets], ZoneInfo(zone)
    for second in range(THEN, END, 6 * 3600):
        true = datetime.fromtimestamp(second, place).utcoffset()
        assert true is not None
        assert offsets[bisect_right(starts, second) - 1][1] == true.total_seconds()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ZONES), st.lists(st.integers(THEN, END - 1), min_size=20, max_size=20))
def test_at_every_second_a_zone_has_the_offset_that_zoneinfo_says(zone: str, seconds: list[int]) -> None:
    offsets = made(f"rules: [{{name: a, limit: 9/day fixed in {zone}}}]")["zones"][zone]
    starts = [start for start, _ in offsets]
    assert starts == sorted(set(starts))
    around = [second for start in starts[1:] for second in (start - 1, start)]
    for second in (THEN, END - 1, *around, *seconds):
        offset = offsets[bisect_right(starts, second) - 1][1]
        true = datetime.fromtimestamp(second, ZoneInfo(zone)).utcoffset()
        assert true is not None
        assert offset == true.total_seconds(), (zone, second)


def test_an_adaptive_limit_has_its_numbers_its_quantile_and_the_texts_of_its_classes() -> None:
    limit = (
        "{adaptive: concurrency, target: p99 200ms, between: [5, 500], priority: {by: plan, order: [pro, free]}}"
    )
    bundle = made(f"rules:\n  - {{name: app, limit: {limit}}}\n")
    texts = [f"adaptive concurrency p99 200ms between 5 and 500, priority {number} of 2" for number in (1, 2)]
    options = bundle["charge_options"]["app"]
    assert (options["adaptive"], options["cases"]["limit"]) == (texts, ["pro", "free"])
    assert [bundle["limits"][text]["numbers"] for text in texts] == [
        ["0", "99.0", "200000", "5", "500", "0", "2"],
        ["0", "99.0", "200000", "5", "500", "1", "2"],
    ]
    assert bundle["limits"][texts[0]]["quantile"] == "0.99"
    assert not bundle["warnings"]


def test_an_adaptive_rule_needs_no_further_script() -> None:
    plain, adaptive = "{name: a, limit: 5/s}", "{name: app, limit: {adaptive: concurrency}}"
    assert made(f"rules: [{plain}, {adaptive}]")["scripts"] == made(f"rules: [{plain}]")["scripts"]


def test_a_warning_says_that_nginx_agrees_with_no_process() -> None:
    bundle = made("rules: [{name: app, where: cluster, limit: {adaptive: concurrency}}]")
    assert bundle["warnings"][-1].startswith('Rule "app" is adaptive, with where: cluster. An nginx has one limit')
