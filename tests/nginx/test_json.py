"""The gate's JSON: what a bundle is read from, and what it is kept as."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nginx.lua_twins import start_twins
from tests.nginx.rules.luajit_process import LuajitProcess

TEXTS = st.text(st.characters(codec="utf-8")) | st.text('"\\/bfnrtu0041\n\t\x00\x1f\x7f', max_size=30)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    TEXTS | NUMBERS | st.booleans(),
    # An empty mapping and an empty list are the same table in Lua.
    lambda inner: st.lists(inner, min_size=1) | st.dictionaries(TEXTS.filter(bool), inner, min_size=1),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


def restored(value: Any) -> Any:
    """Texts cross as bytes, one character for each."""
    if isinstance(value, dict):
        return {restored(name): restored(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [restored(inner) for inner in value]
    return value.encode("latin-1").decode() if isinstance(value, str) else value


@given(value=VALUES, plain=st.booleans())
def test_what_python_writes_is_read(lua: LuajitProcess, value: Any, plain: bool) -> None:
    found = restored(lua.ask("read", text=json.dumps(value, ensure_ascii=plain)))
    assert found == [value]


@given(text=TEXTS)
def test_what_is_quoted_is_read_as_it_was(lua: LuajitProcess, text: str) -> None:
    quoted = restored(lua.ask("quoted", text=text))
    assert json.loads(quoted) == text
    assert restored(lua.ask("read", text=quoted)) == [text]


@pytest.mark.parametrize(
    ("text", "at", "wanted"),
    [
        ('"abc', 5, '"'),
        ('"a\nb"', 3, "an escape"),
        ('"a\\x"', 4, "an escape"),
        ('"a\\', 4, "an escape"),
        ('"\\ud800"', 8, "the other half of a character"),
        ('{"a" 1}', 6, ":"),
        ("[1, null]", 9, "a value instead of null"),
        ("[1 2]", 4, "]"),
        ("1 2", 3, "the end"),
        ("", 1, "a value"),
    ],
)
def test_what_is_not_json_is_refused_where_it_is_not(lua: LuajitProcess, text: str, at: int, wanted: str) -> None:
    assert lua.ask("read", text=text) == {"error": f"This is not JSON: {wanted} was expected at byte {at}."}
