"""The words of an nginx configuration, and what is said of one that is broken."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidRule
from headgate.rules.imports.nginx_conf_parser import MAX_CHARACTERS, Directive, read


def flat(directive: Directive) -> list[object]:
    return [[one.line, one.name, *one.arguments, *([flat(one)] if one.block else [])] for one in directive.block]


def test_directives_have_arguments_blocks_and_lines() -> None:
    text = """
    # a comment; with { marks }
    user www;
    http { server{listen 80;
        location ~ "a{2}" { return 200 'it''s'; } } }
    """
    location = [5, "location", "~", "a{2}", [[5, "return", "200", "it", "s"]]]
    server = [4, "server", [[4, "listen", "80"], location]]
    assert flat(read(text)) == [[3, "user", "www"], [4, "http", [server]]]


def test_quotes_escapes_and_variables() -> None:
    text = r"""limit_req_zone "$host ${uri}" zone=a; set $x ${host}b\;c; log "say \"hé\"\n"; a "b
c"; d;"""
    assert flat(read(text)) == [
        [1, "limit_req_zone", "$host ${uri}", "zone=a"],
        [1, "set", "$x", r"${host}b\;c"],
        [1, "log", 'say "hé"\\n'],
        [1, "a", "b\nc"],
        [2, "d"],
    ]


def test_code_in_another_language_is_not_read() -> None:
    text = "access_by_lua_block {\n local t = {1, {2}}; x = [[ it's ]]\n}\nlimit_req zone=a;"
    assert flat(read(text)) == [[1, "access_by_lua_block"], [4, "limit_req", "zone=a"]]


@pytest.mark.parametrize(
    "code",
    [
        ' x = \'}\' y = "}\\"}" ',
        " -- it's a }\n x = 1 ",
        " --[[ } ]] x = [==[ } ]] } ]==] ",
        " t = { a = { [1] = t[t[2]] } } ",
    ],
)
def test_braces_in_texts_and_comments_of_lua_close_nothing(code: str) -> None:
    found = read(f"http {{ init_by_lua_block {{{code}}} }} a;")
    assert [(one.line, one.code) for one in found.everywhere("init_by_lua_block")] == [(1, code)]
    assert found.block[-1].name == "a"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x_by_lua_block { [[ } a;", "line 1: this block of code is not closed."),
        ('x_by_lua_block { "\\"' + '\\"' * 100_000, "line 1: this block of code is not closed."),
        ("http {\n server {\n }", 'line 1: the block of "http" is not closed.'),
        ("a;\n}", 'line 2: this "}" closes nothing.'),
        ("limit_req zone=a\n", 'line 1: "limit_req" is not ended by a semicolon.'),
        ("server {\n limit_req zone=a\n}", 'line 2: "limit_req" is not ended by a semicolon.'),
        ("\n;", 'line 2: a directive was expected before ";".'),
        ("{}", 'line 1: a directive was expected before "{".'),
        ('a;\nb "c', "line 2: a quote is opened here, or something escaped, that does not end."),
        ("x_by_lua_block {\n {", "line 1: this block of code is not closed."),
        ("a { " * 60, "line 1: more than 50 levels of nesting."),
        ("a" * (MAX_CHARACTERS + 1), "The configuration is larger than 4 MB: split it."),
    ],
)
def test_a_syntax_error_is_reported(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        read(text)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    "piece", ["$", "${", "a ", '"', "\\", "{", "a{", "}", ";", "a;", "'\\", "x_by_lua_block{"]
)
def test_time_grows_with_the_length_only(piece: str) -> None:
    """A hundred thousand of anything: minutes, if it were not so."""
    with suppress(InvalidRule):
        read(piece * 100_000)


@given(st.text(alphabet="ab{};#\"'\\$ \n", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidRule):
        read(text)
