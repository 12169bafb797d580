"""The public names: what docs may use, and what every program may rely on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import headgate
import headgate.client
import headgate.http.client_ip
import headgate.http.headers
import headgate.http.refusal_body
import headgate.http.upstream_limits
import headgate.testing
import headgate.traffic

MODULES: tuple[ModuleType, ...] = (
    headgate,
    headgate.client,
    headgate.http.client_ip,
    headgate.http.headers,
    headgate.http.refusal_body,
    headgate.http.upstream_limits,
    headgate.testing,
    headgate.traffic,
)

_INSIDE = "__func__", "fget", "_work"  # of static methods, properties and lazy properties


def public_names() -> Iterator[tuple[str, Any]]:
    """Functions, classes, and the methods that classes of ours define or inherit from classes of ours."""
    seen: set[int] = set()
    for module in MODULES:
        for name in sorted(dir(module)):  # also what is loaded on first use
            thing = getattr(module, name)
            public = name in module.__all__ if hasattr(module, "__all__") else _defined_here(module, name, thing)
            if not public or not (inspect.isclass(thing) or inspect.isfunction(thing)) or id(thing) in seen:
                continue
            seen.add(id(thing))
            yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing):
                yield from _methods(f"{module.__name__}.{name}", thing, seen)


def documentation(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def _defined_here(module: ModuleType, name: str, thing: object) -> bool:
    return not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__


def _methods(path: str, owner: type, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for base in owner.__mro__:
        if not base.__module__.startswith("headgate"):
            continue
        for name, thing in sorted(vars(base).items()):
            inner = next((getattr(thing, inside) for inside in _INSIDE if hasattr(thing, inside)), thing)
            if name.startswith("_") or not inspect.isfunction(inner) or id(inner) in seen:
                continue
            seen.add(id(inner))
            yield f"{path}.{name}", thing
