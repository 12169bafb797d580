"""Descriptors of envoyproxy/ratelimit as rulebooks: the whole document and the notes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidRule, Limiter, ManualClock
from headgate.rules import imports, load
from headgate.rules.imports.envoy_ratelimit import attribute_names, descriptor_attribute, joined_keys
from headgate.rules.match import Matcher
from tests.rules.imports.translate_and_load import book, document_and_notes, matched_rules, rules

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
    document, notes = document_and_notes(EDGE)
    assert document == {
        "name": "edge",
        "defaults": {"missing": "one"},
        "rules": [
            {
                "name": "remote_address",
                "when": {"descriptor": "remote_address", "not": {"remote_address": ["50.0.0.5", "10.0.*"]}},
                "key": "remote_address",
                "limit": "10/s fixed",
            },
            {
                "name": "remote_address_50.0.0.5",
                "when": {"descriptor": "remote_address", "remote_address": "50.0.0.5"},
                "key": "remote_address",
                "limit": "1/s fixed",
                "cost": 2,
            },
            {
                "name": "marketing",
                "when": {"descriptor": "message_type/to_number", "message_type": "marketing"},
                "key": ["message_type", "to_number"],
                "limit": "5/30d fixed",
            },
            {
                "name": "PATH_-api-files",
                "when": {"descriptor": "PATH", "descriptor_path": "/api/*/files/*"},
                "limit": "1000/hour fixed",
                "mode": "shadow",
                "replaces": ["marketing"],
            },
            {
                "name": "ldap",
                "when": {"descriptor": "ldap"},
                "key": "ldap",
                "limit": "unlimited",
                "replaces": ["marketing"],
            },
        ],
    }
    assert notes == [
        "line 9: 0 requests: every call is refused, because it costs 2 where 1 may pass.",
        "line 17: detailed_metric is about metrics: it is left out.",
        "line 20: its months are 30 days long, counted from 1970, and so are these. For those of the "
        "calendar, write "
        "5/month fixed.",
        'line 22: the key "PATH" became the attribute descriptor_path.',
        "line 30: a shadow rule replaces nothing: the limits that it names apply as well.",
        'line 31: no limit is called "nothing": it is left out of replaces.',
        "line 31: a shadow rule replaces nothing: the limits that it names apply as well.",
    ]


def test_which_rule_a_descriptor_meets() -> None:
    matcher = Matcher(book(EDGE))
    for keys, attributes, rules_met in [
        ("remote_address", {"remote_address": "192.0.2.1"}, ["remote_address"]),
        ("remote_address", {"remote_address": "50.0.0.5"}, ["remote_address_50.0.0.5"]),
        ("remote_address", {"remote_address": "10.0.3.3"}, []),  # without a limit it is let pass
        ("remote_address", {"remote_address": ""}, ["remote_address"]),
        ("message_type/to_number", {"message_type": "marketing", "to_number": "7"}, ["marketing"]),
        ("to_number/message_type", {"message_type": "marketing", "to_number": "7"}, []),  # in another order
        ("message_type/to_number", {"message_type": "alert", "to_number": "7"}, []),
        ("message_type", {"message_type": "marketing"}, []),  # one entry too few
        ("PATH", {"descriptor_path": "/api/1/files/2"}, ["PATH_-api-files"]),
        ("path", {"descriptor_path": "/api/1/files/2"}, []),
    ]:
        assert matched_rules(matcher, descriptor=keys, **attributes) == rules_met, (keys, attributes)


def test_every_value_has_its_count_unless_they_share_one() -> None:
    matcher = Matcher(book(EDGE))
    shared = [{"descriptor": "PATH", "descriptor_path": f"/api/{n}/files/x"} for n in "12"]
    assert [matcher.match(call)[0].key for call in shared] == ["all", "all"]
    alone = [{"descriptor": "remote_address", "remote_address": value} for value in ("192.0.2.1", "")]
    assert [matcher.match(call)[0].key for call in alone] == ["remote_address=192.0.2.1", "remote_address="]


def test_no_two_lists_of_keys_are_joined_alike() -> None:
    assert joined_keys(["a", "b"]) == "a/b"
    assert joined_keys(["a/b"]) == "a%2Fb"
    assert joined_keys(["a%2Fb", "*"]) == "a%252Fb/%2A"
    assert attribute_names(["a", "A", "a_2", "path", "descriptor", "a"]) == [
        "a", "a_2", "a_2_2", "descriptor_path", "descriptor_descriptor", "a_3",
    ]  # fmt: skip


def test_nothing_at_all_may_pass_where_the_limit_is_none() -> None:
    rule = book(EDGE).rules[1]
    assert rule.cost is not None
    refused = Limiter(rule.limit.otherwise[0], clock=ManualClock()).take("key", int(rule.cost.otherwise))
    assert (refused.allowed, refused.retry_after) == (False, None)


def test_the_domain_is_a_condition_on_request() -> None:
    text = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 7}}]"
    assert document_and_notes(text, domain=True, name="mine")[0] == {
        "name": "mine",
        "defaults": {"missing": "one"},
        "rules": [
            {
                "name": "user",
                "when": {"domain": "shop", "descriptor": "user"},
                "key": "user",
                "limit": "7/day fixed",
            }
        ],
    }


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


def test_quota_mode_is_translated() -> None:
    text = "domain: d\ndescriptors: [{key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 7}}]"
    document, notes = document_and_notes(text)
    assert (document["rules"][0]["quota_mode"], notes) == (True, [])


def test_a_name_that_no_rule_can_have_is_its_label() -> None:
    assert [rule.get("label") for rule in rules(
        "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, name: a b}},"
        "{key: b, rate_limit: {unlimited: true, name: b}}]"
    )] == ["a b", None]  # fmt: skip


def test_replacing_in_a_circle() -> None:
    text = """
domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: one, replaces: [{name: two}]}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1, name: two, replaces: [{name: one}]}}
"""
    document, notes = document_and_notes(text)
    assert [rule.get("replaces") for rule in document["rules"]] == [["two"], None]
    assert notes == ["line 5: one and two replace each other: one is not replaced."]


@pytest.mark.parametrize(
    ("descriptors", "note"),
    [
        ("{key: x-id, rate_limit: {unlimited: true}}", 'line 2: the key "x-id" became the attribute x_id.'),
        ("{key: a, unit: day}", "line 2: unit is a key of a rate_limit: here it is left out."),
        (
            "{key: a, rate_limit: {unlimited: true, shadow_mode: true}}",
            "line 2: shadow_mode is a key of a descriptor: here it is left out.",
        ),
        (
            "{key: a, metadata: {team: {id: 7}}, rate_limit: {unlimited: true}}",
            "line 2: metadata only adds dynamic metadata to answers; here that names the rules: it is left out.",
        ),
        ("{key: a, value_to_metric: true}", "line 2: value_to_metric is about metrics: it is left out."),
        (
            "{key: a, descriptors: [{key: a, rate_limit: {unlimited: true}}]}",
            'line 2: the key "a" became the attribute a_2.',
        ),
        (
            "{key: a, value: '*'}, {key: a, rate_limit: {unlimited: true}}",
            'line 2: this is never reached: the value "*" of a fits first. It is left out.',
        ),
        (
            "{key: a, rate_limit: {unit: day}}",
            "line 2: requests_per_unit is not given, and that is 0: every call is refused, because it costs 2 "
            "where 1 may pass.",
        ),
        ("{key: a, rate_limit: {unlimited: true, name: a b}}", 'line 2: the limit "a b" is the rule a-b.'),
    ],
)
def test_differences_are_noted(descriptors: str, note: str) -> None:
    assert note in document_and_notes(f"domain: d\ndescriptors: [{descriptors}]")[1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("descriptors: []", "line 1: a domain was expected, such as domain: shop."),
        ("domain: d\ndescriptors: 1", 'line 2: descriptors is a list, not "1".'),
        ("domain: d\ndescriptors: [{value: 1}]", "line 2: this descriptor has no key."),
        ("domain: d\ndescriptors: [{key: a}, {key: a}]", "line 2: this key and value appear twice in one list."),
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
            "line 2: an unlimited descriptor has no unit.",
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
            "domain: d\ndescriptors: [{key: a, ratelimit: {unit: day, requests_per_unit: 7}}]",
            'line 2: "ratelimit" is not a key of a descriptor. Did you mean rate_limit?',
        ),
        (
            "domain: d\nratelimit: [{key: a}]",
            'line 2: "ratelimit" is not a key of the file. Known here: domain, descriptors.',
        ),
        (
            "domain: d\ndescriptor: [{key: a}]",
            'line 2: "descriptor" is not a key of the file. Did you mean descriptors?',
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_units: 7}}]",
            'line 2: "requests_per_units" is not a key of a rate_limit. Did you mean requests_per_unit?',
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, replaces: [{nam: b}]}}]",
            'line 2: "nam" is not a key of what is replaced. Did you mean name?',
        ),
        (
            "domain: d\ndescriptors: [{key: a_b, value: c}, {key: a, value: b_c}]",
            "line 2: this key and value appear twice in one list.",
        ),
        (
            'domain: d\ndescriptors: [{key: "a*"}]',
            'line 2: "a*" has a * in a key, which cannot be translated: put it into the value.',
        ),
        ("domain: [d]\ndescriptors: []", "line 1: domain is a text, not a list."),
    ],
)
def test_files_that_the_service_refuses_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        imports.translate(text, "envoy")
    assert str(raised.value) == sentence


@given(st.text(max_size=12))
def test_every_key_becomes_the_name_of_an_attribute(key: str) -> None:
    name = descriptor_attribute(key)
    load.from_mapping(
        {"rules": [{"name": "r", "when": {name: "x"}, "key": name, "missing": "skip", "limit": "1/s"}]}
    )
