"""Resolves names in a Python file to the modules that they come from, and reads constants."""

from __future__ import annotations

import ast


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Returns what each imported name stands for: {"FastAPI": "fastapi.FastAPI", "web": "aiohttp.web"}."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Returns the full name of `web.FoundApplication` or `FastAPI`; "" for any other expression."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        parent = full_name(node.value, names)
        return f"{parent}.{node.attr}" if parent else ""
    return ""


def text(node: ast.expr | None) -> str | None:
    """Returns the text of a constant, or None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """Returns the value of the first of these keyword arguments, or None."""
    return next((each.value for each in call.keywords if each.arg in names), None)


def texts(node: ast.expr | None) -> tuple[str, ...]:
    """Returns the texts in a list, tuple or set."""
    elements = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else []
    return tuple(value for value in map(text, elements) if value is not None)
