"""Identifiers are nouns for things and verbs for functions; a docstring begins with what the thing does.

The words below name nothing that a reader could search for: a request, a reply, a decision and a limit have names.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

from tests.repo_rules.repository import ROOT, texts

WORDS = frozenset({"ask", "asked", "hands", "heard", "known", "own", "said", "tell", "told"})
# Names that others chose, and why they stay.
ALLOWED = {
    "ASK": "a redirect of Redis Cluster",
    "own_limit": "a setting of the service, which users write",
    "parse_known_args": "a method of argparse",
    "tell": "a method of Python's files",
}
WHERE_ALLOWED: dict[str, str | tuple[str, ...]] = {
    "ASK": "nginx/lib/resty/headgate/engines/redis/errors.lua",
    "own_limit": ("src/headgate/service/", "tests/service/test_check_api.py"),
    "parse_known_args": "src/headgate/cli/command_parser.py",
    "tell": "src/headgate/traffic/log_files.py",
}

_python_attributes = ("id", "attr", "arg", "asname", "rest", "name")
_lua_noise = re.compile(r"""--\[(=*)\[.*?\]\1\]|--[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
_question_word = re.compile(r"(?:Who|What|How|Where|When|Whether)\b")


def test_no_identifier_has_a_word_that_names_nothing() -> None:
    named = sorted(f"{path}:{line}: {name}" for path, line, name in _forbidden(texts()))
    assert not named, "\n".join(["name these for what they are:", *named])


def test_every_exception_is_in_use() -> None:
    used = {name for path, text in texts() for _, name in _suspects(path, text) if _may_stay(path, name)}
    assert used == set(ALLOWED)


def test_docstrings_say_what_a_thing_does() -> None:
    questions = [
        f"{path}:{line}: {first}"
        for path, text in texts()
        if path.endswith(".py")
        for line, first in _first_lines(text)
        if _question_word.match(first)
    ]
    assert not questions, "\n".join(["begin these with a verb or a noun:", *questions])


def test_the_glossary_is_short_and_has_each_word_once() -> None:
    table = (
        (ROOT / "ARCHITECTURE.md").read_text().partition("| word | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    )
    words = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()]
    assert len(words) <= 30
    assert len(words) == len(set(words))
    assert {"Limit", "Key", "Decision"} <= set(words)


def test_words_are_found_in_every_kind_of_identifier() -> None:
    python = """
        import a.told as b
        from c import d as own_d
        def test_what_is_asked(known, *said): ...
        class Told: ...
        x.heard_us = f(tell=1)
        print(f"{asked_ns}")
        match x:
            case {**hands}: ...
        global OWN
        unknown, asks, owner = "asked", 1, 2  # told
    """
    lines = "\n".join(line.removeprefix(" " * 8) for line in python.splitlines())
    assert {name for _, _, name in _forbidden([("src/a.py", lines)])} == {
        *("told", "own_d", "test_what_is_asked", "known", "said", "Told", "heard_us", "tell", "asked_ns", "hands"),
        "OWN",
    }
    lua = "local asked_at = t.told -- own\nlocal s = \"said\" .. 'own' --[[ known\n known ]] .. heard(unknown)"
    assert list(_forbidden([("nginx/a.lua", lua)])) == [
        *(("nginx/a.lua", 1, "asked_at"), ("nginx/a.lua", 1, "told")),
        ("nginx/a.lua", 3, "heard"),
    ]
    assert not list(_forbidden([("docs/a.md", "asked"), ("src/headgate/traffic/log_files.py", "f.tell()")]))
    assert [first for _, first in _first_lines('"""How."""\ndef f():\n    """What.\n\n    Who."""')] == [
        "How.",
        "What.",
    ]


def _forbidden(sources: Iterable[tuple[str, str]]) -> Iterator[tuple[str, int, str]]:
    for path, text in sources:
        for line, name in _suspects(path, text):
            if not _may_stay(path, name):
                yield path, line, name


@cache
def _suspects(path: str, text: str) -> list[tuple[int, str]]:
    return [(line, name) for line, name in _identifiers(path, text) if WORDS & set(name.lower().split("_"))]


def _may_stay(path: str, name: str) -> bool:
    return name in ALLOWED and path.startswith(WHERE_ALLOWED[name])


def _identifiers(path: str, text: str) -> Iterator[tuple[int, str]]:
    if path.endswith(".py"):
        yield from _python_identifiers(ast.parse(text))
    elif path.endswith(".lua"):
        code = _lua_noise.sub(lambda noise: re.sub(r"[^\n]", " ", noise[0]), text)
        for name in re.finditer(r"[A-Za-z_]\w*", code):
            yield code.count("\n", 0, name.start()) + 1, name[0]


def _python_identifiers(tree: ast.AST, line: int = 0) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        line = getattr(node, "lineno", line)
        names = [getattr(node, attribute, None) for attribute in _python_attributes]
        names += node.names if isinstance(node, ast.Global | ast.Nonlocal) else []
        for name in names:
            for part in name.split(".") if isinstance(name, str) else ():
                yield line, part


def _first_lines(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring.partition("\n")[0]
