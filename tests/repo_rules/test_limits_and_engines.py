"""A limit answers for itself, and the engine port is complete.

No file asks which algorithm a limit has, or what an engine can do.
"""

import ast
from collections.abc import Iterator
from functools import cache

from headgate.algorithms import ALGORITHMS
from tests.repo_rules.repository import SOURCE

# Where limits of a certain algorithm are made.
MAY_NAME_ALGORITHMS = ("algorithms/", "limit_syntax.py", "__init__.py")
CHECKS_WHAT_A_PROGRAM_GAVE = "validation.py"
_PARTS_OF_A_STACK = ("engine", "inner", "meter")


def test_no_file_asks_which_algorithm_a_limit_has() -> None:
    classes = {"FixedWindow", "LeakyBucket", "SlidingLog", "SlidingWindow", "Smooth", "TokenBucket", "WindowLimit"}
    asking = [
        f"{path}:{call.lineno}"
        for path, call in _calls("isinstance")
        if not path.startswith(MAY_NAME_ALGORITHMS)
        if {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)} & classes
    ]
    assert not asking, f"let the limit answer, by a method in the file of its algorithm: {', '.join(asking)}"


def test_no_file_compares_the_name_of_an_algorithm() -> None:
    comparing = [
        f"{path}:{node.lineno}"
        for path, tree in _trees()
        if not path.startswith(MAY_NAME_ALGORITHMS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.MatchValue)
        if any(isinstance(part, ast.Constant) and part.value in ALGORITHMS for part in ast.walk(node))
    ]
    assert not comparing, f"let the limit answer, by a method in the file of its algorithm: {', '.join(comparing)}"


def test_no_file_asks_an_engine_what_it_can_do() -> None:
    asking = [
        f"{path}:{call.lineno}"
        for function in ("getattr", "hasattr")
        for path, call in _calls(function)
        if path != CHECKS_WHAT_A_PROGRAM_GAVE
        if ast.unparse(call.args[0]).split(".")[-1].lstrip("_").endswith(_PARTS_OF_A_STACK)
    ]
    assert not asking, f"put it into the engine port (engines/port.py): {', '.join(asking)}"


def _calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Yields every call of a builtin function, with its file."""
    for path, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield path, node


@cache
def _trees() -> tuple[tuple[str, ast.Module], ...]:
    return tuple((str(path.relative_to(SOURCE)), ast.parse(path.read_text())) for path in SOURCE.rglob("*.py"))
