"""Importing detects the kind of a configuration, and returns a rulebook or a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidRule
from headgate.rules import imports, load
from headgate.rules.imports import KINDS, TranslationNote, detect_kind, translate
from tests.rules.imports.test_envoy_ratelimit import EDGE
from tests.rules.imports.test_nginx_limit_req import SITE
from tests.rules.imports.test_spring_gateway import SHOP


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (EDGE, "envoy"),
        ('{"domain": "d",\n"descriptors": []}', "envoy"),
        (SHOP, "spring"),
        ("spring.cloud.gateway.routes: []", "spring"),
        (SITE, "nginx"),
        ("server { limit_conn addr 1; }", "nginx"),
        ("5/second;100/hour", "limits"),
        ("RATELIMIT_DEFAULT = '1/day'", "limits"),
    ],
)
def test_the_kind_is_guessed(text: str, kind: str) -> None:
    assert detect_kind(text) == kind
    load.from_mapping(translate(text).document)


@pytest.mark.parametrize("text", ["", "hello", "name: shop\nrules: []", "# limit_req zone=a;"])
def test_an_unrecognized_file_asks_for_its_kind(text: str) -> None:
    with pytest.raises(
        InvalidRule,
        match=r"^This kind of file is not recognized\. Name it with --kind "
        r".*: envoy .*, spring .*, nginx .*limits",
    ):
        translate(text)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(
        InvalidRule, match=r'^"apache" cannot be imported\. Known are envoy, spring, nginx, limits\.$'
    ):
        translate("x", "apache")


def test_a_note_reads_as_a_sentence_with_its_line() -> None:
    assert str(TranslationNote(7, "it is so.")) == "line 7: it is so."
    assert str(TranslationNote(None, "It is so.")) == "It is so."


def test_a_file_without_limits_is_noted() -> None:
    for kind, text in (("nginx", "events { }"), ("envoy", "domain: d"), ("spring", "spring: {}")):
        translated = imports.translate(text, kind)
        assert translated.document["rules"] == []
        assert translated.notes == [
            TranslationNote(None, "No limit was found that could be translated: the rulebook is empty.")
        ]


PIECES = [
    "domain: d",
    "descriptors:",
    "  - key: a",
    "    value: b*",
    "    rate_limit: {unit: day}",
    "spring:",
    "  cloud:",
]
PIECES += [
    "    gateway: {routes: [{id: 1}]}",
    "limit_req zone=a;",
    "{",
    "}",
    ";",
    "5/second",
    "[",
    "]",
    "&a",
    "*a",
    "\t",
    "---",
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map("\n".join) | st.text(max_size=80), st.sampled_from(KINDS)
)
def test_any_text_is_translated_or_refused(text: str, kind: str) -> None:
    try:
        translated = imports.translate(text, kind)
    except InvalidRule:
        return
    load.from_mapping(translated.document)
