"""A class name occurs once in the whole tree."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.repo_rules.repository import texts

FOLDERS = ("benchmarks/", "examples/", "src/", "tests/")


def test_a_class_name_occurs_once_in_the_tree() -> None:
    shared = _shared_names(texts())
    assert not shared, "\n".join(["rename all but one of", *shared])


def test_two_classes_of_one_name_are_listed_with_their_lines() -> None:
    sources = [
        ("src/a.py", "class Meter: ...\n"),
        ("tests/b.py", "def test() -> None:\n    class Meter: ...\n\n    class Clock: ...\n"),
        ("docs/c.py", "class Clock: ...\n"),
    ]
    assert _shared_names(sources) == ["Meter: src/a.py:1, tests/b.py:2"]


def _shared_names(sources: Iterable[tuple[str, str]]) -> list[str]:
    lines: dict[str, list[str]] = defaultdict(list)
    for path, text in sources:
        if path.startswith(FOLDERS) and path.endswith(".py"):
            for name, line in _classes(text):
                lines[name].append(f"{path}:{line}")
    return [f"{name}: {', '.join(places)}" for name, places in sorted(lines.items()) if len(places) > 1]


def _classes(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
