"""The JSON of bundles in Lua: what lua-cjson reads and writes under our settings, and what is refused."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nginx.pure_modules_process import start_twins
from tests.nginx.rules.luajit_process import LuajitProcess
from tests.repo_rules.repository import ROOT

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
def test_lua_decodes_the_json_of_python(lua: LuajitProcess, value: Any, plain: bool) -> None:
    decoded = restored(lua.call_driver("read", text=json.dumps(value, ensure_ascii=plain)))
    assert decoded == [value]


@given(text=TEXTS)
def test_lua_strings_survive_json_quoting(lua: LuajitProcess, text: str) -> None:
    quoted = restored(lua.call_driver("quoted", text=text))
    assert json.loads(quoted) == text
    assert restored(lua.call_driver("read", text=quoted)) == [text]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ('"abc', 5),
        ('"a\\x"', 3),
        ('"\\ud800"', 2),
        ('{"a" 1}', 6),
        ("[1 2]", 4),
        ("1 2", 3),
        ("", 1),
        ("[0x10]", 2),
        ("[nan]", 2),
        ("[" * 101 + "]" * 101, 101),
    ],
)
def test_a_text_that_is_not_json_is_refused_with_its_place(lua: LuajitProcess, text: str, at: int) -> None:
    why = lua.call_driver("read", text=text)["error"]
    assert why.startswith("This is not JSON: ")
    assert why.endswith(f" at character {at}.")


def test_a_null_in_a_mapping_is_absent(lua: LuajitProcess) -> None:
    assert lua.call_driver("read", text='{"a": null, "b": {"c": null, "d": 1}}') == [{"b": {"d": 1}}]


def test_a_null_in_a_list_is_refused(lua: LuajitProcess) -> None:
    assert lua.call_driver("read", text='{"a": [1, null]}') == {
        "error": "This is not a bundle's JSON: a list contains null."
    }


def test_without_lua_cjson_a_sentence_names_the_package() -> None:
    program = 'package.cpath = ""; require "resty.headgate.rules.bundle_json"'
    environment = {"LUA_PATH": f"{ROOT}/nginx/lib/?.lua", "PATH": "/usr/bin"}
    done = subprocess.run(["luajit", "-e", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "headgate needs lua-cjson. In Debian: apt install lua-cjson." in done.stderr
