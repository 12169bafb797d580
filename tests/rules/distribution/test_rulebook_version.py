"""A version is read as it was written; what cannot be one is refused with a sentence."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidRule
from headgate.rules.distribution import rulebook_version
from headgate.rules.distribution.rulebook_version import MAX_BYTES, RulebookVersion, draft, from_draft

texts = st.text(st.characters(exclude_categories=["Cs"]))
lines = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=100)
versions = st.builds(
    RulebookVersion,
    version=st.integers(1, 2**53),
    at_us=st.integers(0, 2**53),
    author=lines,
    note=lines,
    format=st.sampled_from(rulebook_version.FORMATS),
    text=texts,
    document=texts,
    rolled_back_to=st.none() | st.integers(1, 2**53),
)


def drafted(**changed: str) -> str:
    fields = {"text": "rules: []  # none", "document": '{"rules":[]}', "format": "yaml", "author": "ana"}
    fields |= changed
    return draft(
        fields["text"],
        fields["document"],
        format=fields["format"],
        author=fields["author"],
        note=fields.get("note", ""),
    )


@given(versions)
def test_a_written_version_is_read_back(one: RulebookVersion) -> None:
    assert RulebookVersion.read(json.dumps(asdict(one))) == one
    assert RulebookVersion.read(json.dumps(asdict(one)).encode()) == one


@given(versions)
def test_a_draft_lacks_number_and_time_only(one: RulebookVersion) -> None:
    version = draft(
        one.text,
        one.document,
        format=one.format,
        author=one.author,
        note=one.note,
        rolled_back_to=one.rolled_back_to,
    )
    assert set(json.loads(json.dumps(asdict(one)))) - set(json.loads(version)) == {"version", "at_us"}
    assert from_draft(version, one.version, one.at_us) == one


@given(
    st.dictionaries(texts, st.none() | texts | st.lists(st.integers())),
    st.sets(st.sampled_from(rulebook_version.GATEWAY_FIELDS)),
)
def test_the_rulebook_is_the_document_without_gateway_fields(fields: dict[str, object], beside: set[str]) -> None:
    book = {name: value for name, value in fields.items() if name not in rulebook_version.GATEWAY_FIELDS}
    document = json.dumps(book | {name: {"10/s": {"fresh": 10}} for name in beside})
    one = RulebookVersion(version=1, at_us=0, author="ana", note="", format="yaml", text="", document=document)
    assert json.loads(one.book) == book
    assert beside or one.book == document


@pytest.mark.parametrize("document", ["", "{", "[1]", "7", '"limits"', '{"rules":[{"limits":1}]}', "[" * 100_000])
def test_a_document_without_gateway_fields_is_left_unchanged(document: str) -> None:
    one = RulebookVersion(version=1, at_us=0, author="ana", note="", format="yaml", text="", document=document)
    assert one.book == document


def test_a_text_in_any_script_is_written_as_it_is() -> None:
    assert "größer 李" in drafted(text="größer 李")


def test_its_origin_is_where_its_text_was_first() -> None:
    new = from_draft(drafted(), 4, 1)
    assert new.origin == 4
    again = from_draft(draft("a", "{}", format="yaml", author="ana", rolled_back_to=3), 5, 1)
    assert again.origin == 3


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "its version should be a whole number"),
        (b'{"version":true}', "its version should be a whole number"),
        (b'{"version":-1}', "its version should be a whole number"),
        (b'{"version":1,"at_us":1,"author":7}', "its author should be a text, not '7'"),
    ],
)
def test_an_invalid_version_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(InvalidRule, match=why):
        RulebookVersion.read(raw)


@given(versions, st.data())
def test_no_part_of_a_version_is_one(one: RulebookVersion, data: st.DataObject) -> None:
    raw = json.dumps(asdict(one)).encode()
    with pytest.raises(InvalidRule):
        RulebookVersion.read(raw[: data.draw(st.integers(0, len(raw) - 1))])


@pytest.mark.parametrize("mark", ["\n", "\r", "\x00", "\x1b[31m", "\x7f", "\x9b", "\u2028", "\u202e", "\ud800"])
def test_author_and_note_are_one_line_without_control_characters(mark: str) -> None:
    with pytest.raises(InvalidRule, match="The author is one line"):
        drafted(author=f"a{mark}na")
    with pytest.raises(InvalidRule, match="The note is one line"):
        drafted(note=f"more{mark}room")


def test_people_may_be_called_as_they_are() -> None:
    name = "Zoë 李 نازنین\u200c👩\u200d🔧"
    assert from_draft(drafted(author=f"  {name} "), 1, 1).author == name


def test_author_and_note_are_short() -> None:
    drafted(author="a" * 100, note="n" * 500)
    with pytest.raises(InvalidRule, match="The author has 101 characters; at most 100"):
        drafted(author="a" * 101)
    with pytest.raises(InvalidRule, match="The note has 501 characters; at most 500"):
        drafted(note="n" * 501)
    with pytest.raises(InvalidRule, match="must not be empty"):
        drafted(author=" ")


def test_a_text_has_at_most_4_mb() -> None:
    drafted(text="a" * MAX_BYTES, document="é" * (MAX_BYTES // 2))
    with pytest.raises(InvalidRule, match="text has 4,194,305 bytes; at most 4,194,304"):
        drafted(text="a" * (MAX_BYTES + 1))
    with pytest.raises(InvalidRule, match="JSON has 4,194,306 bytes"):
        drafted(document="é" * (MAX_BYTES // 2 + 1))


def test_a_text_is_text_in_a_supported_format() -> None:
    with pytest.raises(InvalidRule, match="half a character at 3"):
        drafted(text="abc\udc80")
    with pytest.raises(InvalidRule, match="yaml, toml or json, not in 'ini'"):
        drafted(format="ini")
