"""Descriptors of envoyproxy/ratelimit as rulebooks: the whole document and the notes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidRule, Limiter, ManualClock
from headgate.rules import imports, load
from headgate.rules.imports.envoy import attribute
from headgate.rules.match import Matcher
from tests.rules.imports.told import book, met, rules, told

KEYS = (
    "A descriptor is told by the keys of its entries: their order does not count, keys that this file does not "
    "name are not looked at, and an empty value counts as none."
)

EDGE = """
domain: edge
descriptors:
  # every address, and a few of its own
  - key: remote_address
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: remote_address
    value: 50.0.0.5
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: remote_address
    value: 10.0.*

  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        detailed_metric: true
        rate_limit:
          name: marketing
          unit: month
          requests_per_unit: 5
  - key: PATH
    value: /api/*/files/*
    share_threshold: true
    shadow_mode: true
    rate_limit:
      unit: hour
      requests_per_unit: 1000
      replaces:
        - name: marketing
        - name: nothing
  - key: ldap
    rate_limit:
      unlimited: true
      replaces: [{name: marketing}]
"""


def test_a_whole_domain() -> None:
    document, notes = told(EDGE)
    assert document == {
        "name": "edge",
        "defaults": {"missing": "skip"},
        "rules": [
            {
                "name": "remote_address",
                "when": {
                    "not": {"remote_address": ["50.0.0.5", "10.0.*"]},
                    "message_type": False,
                    "to_number": False,
                    "descriptor_path": False,
                    "ldap": False,
                },
                "key": "remote_address",
                "limit": "10/s fixed",
            },
            {
                "name": "remote_address_50.0.0.5",
                "when": {
                    "remote_address": "50.0.0.5",
                    "message_type": False,
                    "to_number": False,
                    "descriptor_path": False,
                    "ldap": False,
                },
                "key": "remote_address",
                "limit": "1/s fixed",
                "cost": 2,
            },
            {
                "name": "marketing",
                "when": {
                    "message_type": "marketing",
                    "remote_address": False,
                    "descriptor_path": False,
                    "ldap": False,
                },
                "key": ["message_type", "to_number"],
                "limit": "5/30d fixed",
            },
            {
                "name": "descriptor_path_-api-files",
                "when": {
                    "descriptor_path": "/api/*/files/*",
                    "remote_address": False,
                    "message_type": False,
                    "to_number": False,
                    "ldap": False,
                },
                "limit": "1000/hour fixed",
                "mode": "shadow",
                "replaces": ["marketing"],
            },
            {
                "name": "ldap",
                "when": {
                    "remote_address": False,
                    "message_type": False,
                    "to_number": False,
                    "descriptor_path": False,
                },
                "key": "ldap",
                "limit": "unlimited",
                "replaces": ["marketing"],
            },
        ],
    }
    assert notes == [
        KEYS,
        "line 9: 0 requests: every call is refused, because it costs 2 where 1 may pass.",
        "line 17: detailed_metric is about metrics: it is left out.",
        "line 20: its months are 30 days long, counted from 1970, and so are these. Those of the calendar are "
        "5/month fixed.",
        'line 22: the key "PATH" became the attribute descriptor_path.',
        "line 30: a shadow replaces nothing: what it was to replace applies as well.",
        'line 31: no limit is called "nothing": it is left out of what is replaced.',
        "line 31: a shadow replaces nothing: what it was to replace applies as well.",
    ]


def test_which_rule_a_descriptor_meets() -> None:
    matcher = Matcher(book(EDGE))
    assert met(matcher, remote_address="192.0.2.1") == ["remote_address"]
    assert met(matcher, remote_address="50.0.0.5") == ["remote_address_50.0.0.5"]
    assert met(matcher, remote_address="10.0.3.3") == []  # without a limit it is let pass
    assert met(matcher, message_type="marketing", to_number="7") == ["marketing"]
    assert met(matcher, message_type="alert", to_number="7") == []
    assert met(matcher, message_type="marketing") == []  # one entry too few
    assert met(matcher, to_number="7") == []


def test_every_value_has_its_own_count_unless_they_share_one() -> None:
    matcher = Matcher(book(EDGE))
    one, other = (matcher.match({"descriptor_path": f"/api/{n}/files/x"})[0].key for n in "12")
    assert one == other == "all"
    one, other = (matcher.match({"remote_address": f"192.0.2.{n}"})[0].key for n in "12")
    assert (one, other) == ("remote_address=192.0.2.1", "remote_address=192.0.2.2")


def test_nothing_at_all_may_pass_where_the_limit_is_none() -> None:
    rule = book(EDGE).rules[1]
    assert rule.cost is not None
    refused = Limiter(rule.limit.otherwise[0], clock=ManualClock()).take("key", int(rule.cost.otherwise))
    assert (refused.allowed, refused.retry_after) == (False, None)


def test_the_domain_is_asked_for_if_one_wants() -> None:
    text = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 7}}]"
    assert told(text, domain=True, name="mine")[0] == {
        "name": "mine",
        "defaults": {"missing": "skip"},
        "rules": [{"name": "user", "when": {"domain": "shop"}, "key": "user", "limit": "7/day fixed"}],
    }


def test_what_many_keys_exclude_is_said_once() -> None:
    entries = "".join(f"- {{key: k{n}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n" for n in range(6))
    more = "- {key: k0, value: x, rate_limit: {unit: hour, requests_per_unit: 2}}\n"
    document, _ = told(f"domain: d\ndescriptors:\n{entries}{more}")
    assert document["conditions"]["only-k0"] == {f"k{n}": False for n in range(1, 6)}
    assert len(document["conditions"]) == 6
    assert document["rules"][0]["when"] == {"is": "only-k0", "not": {"k0": "x"}}
    assert document["rules"][-1]["when"] == {"is": "only-k0", "k0": "x"}


@pytest.mark.parametrize(
    ("unit", "limit"),
    [
        *(("SECOND", "5/s fixed"), ("minute", "5/minute fixed"), ("hour", "5/hour fixed"), ("day", "5/day fixed")),
        *(("week", "5/7d fixed"), ("month", "5/30d fixed"), ("year", "5/365d fixed")),
    ],
)
def test_units(unit: str, limit: str) -> None:
    text = f"domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: {unit}, requests_per_unit: 5}}}}]"
    assert rules(text)[0]["limit"] == limit


def test_replacing_in_a_circle() -> None:
    text = """
domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: one, replaces: [{name: two}]}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1, name: two, replaces: [{name: one}]}}
"""
    document, notes = told(text)
    assert [rule.get("replaces") for rule in document["rules"]] == [["two"], None]
    assert notes[1:] == ["line 5: one and two replace each other: one is not replaced."]


@pytest.mark.parametrize(
    ("descriptors", "note"),
    [
        ("{key: x-id, rate_limit: {unlimited: true}}", 'line 2: the key "x-id" became the attribute x_id.'),
        ("{key: a, what: 1}", "line 2: what is not known: it is left out."),
        ("{key: a, rate_limit: {unlimited: true, per: 1}}", "line 2: per is not known: it is left out."),
        (
            "{key: a, quota_mode: true, rate_limit: {unlimited: true}}",
            "line 2: quota_mode has no equivalent: the rule is a shadow.",
        ),
        (
            "{key: a, descriptors: [{key: a, rate_limit: {unlimited: true}}]}",
            "line 2: the key a stands twice on the way here, which cannot be said: it is left out.",
        ),
        (
            "{key: a, descriptors: [{key: b, rate_limit: {unlimited: true}}]}, "
            "{key: b, descriptors: [{key: a, rate_limit: {unlimited: true}}]}",
            "line 2: b, a are also the keys of a limit that has them in another order: a descriptor with these "
            "keys meets both.",
        ),
        ("{key: a, rate_limit: {unlimited: true, name: a b}}", 'line 2: the limit "a b" is the rule a-b.'),
    ],
)
def test_what_differs_is_said(descriptors: str, note: str) -> None:
    assert note in told(f"domain: d\ndescriptors: [{descriptors}]")[1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("descriptors: []", "line 1: a domain was expected, such as domain: shop."),
        ("domain: d\ndescriptors: 1", 'line 2: descriptors is a list, not "1".'),
        ("domain: d\ndescriptors: [{value: 1}]", "line 2: this descriptor has no key."),
        ("domain: d\ndescriptors: [{key: a}, {key: a}]", "line 2: this key and value stand twice in one list."),
        (
            "domain: d\ndescriptors: [{key: a, share_threshold: true}]",
            "line 2: share_threshold is for values with a * only.",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: fortnight}}]",
            'line 2: "fortnight" is not a unit. Known are second, minute, hour, day, week, month, year.',
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]",
            'line 2: requests_per_unit is a whole number, not "-1".',
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, unlimited: true}}]",
            "line 2: what is unlimited has no unit.",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, name: n, replaces: [{name: n}]}}]",
            "line 2: replaces takes the name of another limit.",
        ),
        (
            "domain: d\ndescriptors: [{key: a, shadow_mode: maybe, rate_limit: {unlimited: true}}]",
            "line 2: shadow_mode is true or false, not 'maybe'.",
        ),
        (
            "domain: d\ndescriptors: [{key: x-id}, {key: x_id}]",
            'line 2: the keys "x-id" and "x_id" would both be called x_id here: rename one.',
        ),
        ("domain: [d]\ndescriptors: []", "line 1: domain is a text, not a list."),
    ],
)
def test_what_the_service_would_not_take_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        imports.translate(text, "envoy")
    assert str(raised.value) == sentence


@given(st.text(max_size=12))
def test_every_key_becomes_the_name_of_an_attribute(key: str) -> None:
    name = attribute(key)
    load.of({"rules": [{"name": "r", "when": {name: "x"}, "key": name, "missing": "skip", "limit": "1/s"}]})
