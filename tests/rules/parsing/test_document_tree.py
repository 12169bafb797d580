"""Bytes become a document tree: what is kept, what is refused, and in which line."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import MissingExtra
from headgate.rules.parsing import read_json, read_python_values, read_toml, read_yaml
from headgate.rules.parsing.document_tree import (
    MAX_BYTES,
    Fault,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    decode,
    describe_node,
)
from headgate.rules.parsing.toml_line_numbers import line_numbers

Read = Callable[[str], Node]


def plain(node: Node) -> Any:
    """The tree without places; plain scalars in angle brackets."""
    if isinstance(node, MappingNode):
        return {name: plain(inner) for name, (_, inner) in node.entries.items()}
    if isinstance(node, ListNode):
        return [plain(inner) for inner in node.nodes]
    return node.text if node.quoted else f"<{node.text}>"


def fault_of(read: Callable[[], object]) -> tuple[int | str | None, str]:
    began = time.perf_counter()
    with pytest.raises(Fault) as caught:
        read()
    assert time.perf_counter() - began < 15
    return caught.value.position.line or caught.value.position.path, caught.value.sentence


# What the writer sees is what is kept.


def test_yaml_keeps_what_is_written() -> None:
    text = "a: off\nb: 1_000\nc: 0x10\nd: 'off'\ne: 2026-11-16\nf:\ng: |\n  x\n  y\n1: [~, \"\"]\n"
    assert plain(read_yaml.read(text)) == {
        "a": "<off>",
        "b": "<1_000>",
        "c": "<0x10>",
        "d": "off",
        "e": "<2026-11-16>",
        "f": "<>",
        "g": "x\ny\n",
        "1": ["<~>", ""],
    }


def test_toml_and_json_and_python_agree() -> None:
    tree = {"a": "x", "b": [True, False, 7], "c": {"d": "2.50"}}
    expected = {"a": "x", "b": ["<true>", "<false>", "<7>"], "c": {"d": "2.50"}}
    assert plain(read_python_values.read(tree)) == expected
    assert plain(read_json.read(json.dumps(tree))) == expected
    assert plain(read_toml.read('a = "x"\nb = [true, false, 7]\nc.d = "2.50"\n')) == expected
    assert plain(read_toml.read("a = 2.50\nb = 1e3\n")) == {"a": "<2.50>", "b": "<1e3>"}


def test_aliases_are_what_they_stand_for() -> None:
    assert plain(read_yaml.read("a: &x {b: &y c}\nd: [*x, *y]\n")) == {
        "a": {"b": "<c>"},
        "d": [{"b": "<c>"}, "<c>"],
    }


def test_an_anchor_given_twice_is_the_last_one() -> None:
    assert plain(read_yaml.read("a: &x 1\nb: *x\nc: &x 2\nd: *x\n")) == {
        "a": "<1>",
        "b": "<1>",
        "c": "<2>",
        "d": "<2>",
    }


def test_a_kind_is_a_word_that_people_know() -> None:
    nodes = read_yaml.read("- []\n- {}\n- x\n- ~\n")
    assert isinstance(nodes, ListNode)
    assert [describe_node(node) for node in nodes.nodes] == ["an empty list", "an empty mapping", '"x"', "nothing"]


# The bytes.


def test_a_mark_at_the_beginning_is_passed_over() -> None:
    assert decode(b"\xef\xbb\xbfrules: []") == "rules: []"
    assert decode("\ufeffrules: []") == "rules: []"


@pytest.mark.parametrize(
    ("data", "line", "sentence"),
    [
        (b"", 1, "The rulebook is empty."),
        (b"\xef\xbb\xbf", 1, "The rulebook is empty."),
        ("rules: []".encode("utf-16"), 1, "The rulebook is written in UTF-16."),
        ("rules: []".encode("utf-16-be"), 1, "The character U+0000 is not allowed in YAML."),
        (b"\xfe\xff\x00r", 1, "The rulebook is written in UTF-16."),
        ("rules: []".encode("utf-32"), 1, "The rulebook is written in UTF-32."),
        (b"\x00\x00\xfe\xff", 1, "The rulebook is written in UTF-32."),
        ("name: a\n# Zürich\nrules: []\n".encode("latin-1"), 2, "The byte 0xfc here is not UTF-8."),
        (b"a: b\n" * 1_000_000, 1, "The rulebook is larger than 4 MB."),
        (b"a: b\nc: \x1b[0m\n", 2, "The character U+001B is not allowed in YAML."),
        ("a: b\nc: \ud800\n", 2, "There is half a character (a lone surrogate) here."),
    ],
    ids=str,
)
def test_bytes_that_are_no_document(data: str | bytes, line: int, sentence: str) -> None:
    assert fault_of(lambda: read_yaml.read(decode(data))) == (line, sentence)


def _bomb(rows: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{row}: &a{row} [{', '.join([f'*a{row - 1}'] * 10)}]" for row in range(1, rows)]
    return "\n".join(lines)


def _stairs(rows: int) -> str:
    return "a0: &a0 x\n" + "".join(f"a{row}: &a{row} [*a{row - 1}]\n" for row in range(1, rows))


BIG = "The rulebook is too big: more than 100,000 values, with aliases written out."
DEEP = "The rulebook is too deep: more than 32 levels of nesting."


@pytest.mark.parametrize(
    ("read", "text", "line", "sentence"),
    [
        (read_yaml.read, _bomb(9), 5, BIG),
        (read_yaml.read, _stairs(40), 32, DEEP),
        (read_yaml.read, "[" * (MAX_BYTES - 1), 1, DEEP),
        (read_yaml.read, "{" * (MAX_BYTES - 1), 1, DEEP),
        (read_yaml.read, "- " * (MAX_BYTES // 2), 1, DEEP),
        (read_yaml.read, "".join(" " * i + "a:\n" for i in range(2000)), 32, DEEP),
        (read_yaml.read, "- x\n" * 999_999, 100_000, BIG),
        (read_json.read, "[" * MAX_BYTES, 1, DEEP),
        (read_json.read, "[" + "1,\n" * 1_000_000, 100_000, BIG),
        (read_json.read, '"' + "\\\\" * (MAX_BYTES // 2 - 1), 1, "This text is not JSON."),
        (read_toml.read, "a = " + "[" * (MAX_BYTES - 4), 1, DEEP),
        (read_toml.read, "x = 1\n" + "a." * 1_900_000 + "b = 1", 2, "A key has more than 32 parts."),
        (read_toml.read, "x = 1\n[" + "a." * 1_900_000 + "b]", 2, "A key has more than 32 parts."),
        (read_toml.read, "x = [\n" + "1,\n" * 1_000_000 + "]", 100_000, BIG),
        (read_toml.read, "[[x]]\n" * 600_000, 100_001, BIG),
        (read_toml.read, "x = " + "9" * 3_000_000, 1, "This is not TOML: a number is too long."),
        (
            read_toml.read,
            "x = 0x" + "f" * 3_000_000,
            1,
            "This number is 2^64 or more; nothing in a rulebook is as big.",
        ),
        (
            read_toml.read,
            'x = "' + '"a' * 1_900_000,
            1,
            "This is not TOML: expected newline or end of document after a statement.",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bombs_are_left_at_once(read: Read, text: str, line: int, sentence: str) -> None:
    assert fault_of(lambda: read(decode(text))) == (line, sentence)


def test_values_of_a_program_are_bounded_too() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert fault_of(lambda: read_python_values.read(ring)) == ("[0]" * 32, DEEP)
    wide: Any = "x"
    for _ in range(9):
        wide = [wide] * 10
    assert fault_of(lambda: read_python_values.read(wide))[1] == BIG


@pytest.mark.parametrize(
    ("value", "path", "sentence"),
    [
        ({"a": {"b c": [1, object()]}}, 'a["b c"][1]', "A value of the type object is not allowed in a rulebook."),
        ({"a": {2.5: "x"}}, "a.float", "A name in a mapping is a text, not of the type float."),
        ({1: "x", "1": "y"}, "1", '"1" appears twice in one mapping.'),
        ({"a": "\udc80"}, "a", '"\\udc80" holds half a character (a lone surrogate).'),
        ({"a": 2**70}, "a", "This number is 2^64 or more; nothing in a rulebook is as big."),
        (b"rules", "top", "A value of the type bytes is not allowed in a rulebook."),
    ],
)
def test_values_that_cannot_stand_in_a_rulebook(value: Any, path: str, sentence: str) -> None:
    assert fault_of(lambda: read_python_values.read(value)) == (path, sentence)


# PyYAML is not ours.


def test_without_pyyaml_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match=r"^A rulebook in YAML needs PyYAML: pip install 'headgate\[yaml\]'"):
        read_yaml.read("rules: []")
    assert plain(read_json.read('{"rules": []}')) == plain(read_toml.read("rules = []")) == {"rules": []}


def test_without_the_c_loader_the_tree_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: &x [1, 'b', {c: \"d\"}]\ne: *x\nf: >\n  g\n  h\n"
    expected = read_yaml.read(text)
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert read_yaml.read(text) == expected
    for bad in ("a:\n\tb: c\n", "a: [b\n", 'a: "b\n', "a: b: c\n", "- a\nb: c\n", "a: @b\n"):
        assert fault_of(lambda bad=bad: read_yaml.read(bad))  # type: ignore[misc]


# JSON is what the standard library says it is, and more strictly so.


def standard(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError
        return dict(pairs)

    def refuse(word: str) -> None:
        raise ValueError(word)

    def number(written: str) -> str:
        return f"<{written}>"

    return json.loads(text, object_pairs_hook=once, parse_constant=refuse, parse_int=number, parse_float=number)


def marked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: marked(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [marked(inner) for inner in value]
    return f"<{json.dumps(value)}>" if value is None or isinstance(value, bool) else value


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=20,
)


@settings(deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_json_is_read_as_the_standard_library_reads_it(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert plain(read_json.read(text)) == marked(standard(text))


@settings(deadline=None)
@given(st.text(alphabet='{}[],:"\\ \n\t0123.eE+-truefalsnNaIfiy\x00é', max_size=20) | st.text(max_size=10))
def test_json_that_the_standard_library_refuses_is_refused(text: str) -> None:
    try:
        expected = marked(standard(text))
    except ValueError:
        with pytest.raises(Fault):
            read_json.read(text)
    else:
        assert plain(read_json.read(text)) == expected


# TOML's lines.


TRICKY = """\
title = "[not] a = table" # [nor] = "this
text = \"\"\"
a = 1 ""
[b]\"\"\"
'x y'.z = '''
c = 2'''
list = [ 1, # one
  "two, ]",
  { three = 3, four = [4,
5] } ]
when = 2026-11-16 10:00:00
[[rules]]
name = "a"
refuse.body = "x"
[rules.limit]
by = "plan"
[rules.limit.cases]
"free" = 1
[[rules]]
name = "b"
[[rules.parts]]
p = 1
[[rules.parts]]
q = 2
["es\\u0063aped"."\\U0001F600"]
last = -1.5e3
"""


def test_the_lines_of_a_tricky_text() -> None:
    lines = line_numbers(TRICKY)
    tomllib.loads(TRICKY)
    assert {".".join(map(str, path)): line for path, line in lines.items()} == {
        "": 1,
        "title": 1,
        "text": 2,
        "x y": 5,
        "x y.z": 5,
        "list": 7,
        "list.0": 7,
        "list.1": 8,
        "list.2": 9,
        "list.2.three": 9,
        "list.2.four": 9,
        "list.2.four.0": 9,
        "list.2.four.1": 10,
        "when": 11,
        "rules": 12,
        "rules.0": 12,
        "rules.0.name": 13,
        "rules.0.refuse": 14,
        "rules.0.refuse.body": 14,
        "rules.0.limit": 15,
        "rules.0.limit.by": 16,
        "rules.0.limit.cases": 17,
        "rules.0.limit.cases.free": 18,
        "rules.1": 19,
        "rules.1.name": 20,
        "rules.1.parts": 21,
        "rules.1.parts.0": 21,
        "rules.1.parts.0.p": 22,
        "rules.1.parts.1": 23,
        "rules.1.parts.1.q": 24,
        "escaped.\U0001f600": 25,
        "escaped.\U0001f600.last": 26,
    }


@settings(deadline=None)
@given(st.text(alphabet="ab.=[]{}\"'#,\n 1\\", max_size=40))
def test_every_toml_value_has_a_line(text: str) -> None:
    try:
        tree = tomllib.loads(text)
    except ValueError:
        line_numbers(text)
        return
    lines = line_numbers(text)
    count = text.count("\n") + 1

    def look(value: Any, path: tuple[str | int, ...]) -> None:
        assert 1 <= lines[path] <= count
        if isinstance(value, dict):
            for name, inner in value.items():
                assert name in text.splitlines()[lines[(*path, name)] - 1]
                look(inner, (*path, name))
        elif isinstance(value, list):
            for place, inner in enumerate(value):
                look(inner, (*path, place))

    look(tree, ())


def test_a_scalar_that_says_nothing() -> None:
    node = read_yaml.read("~")
    assert isinstance(node, ScalarNode)
    assert node.empty
