"""Reads what decorators have marked views with: their limits, and exemptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

V = TypeVar("V", bound=Callable[..., Any])

LIMIT_MARK = "headgate_limit_"  # one attribute for each limit, with its number
_EXEMPT = "headgate_exempt"


def exempt(view: V) -> V:
    """Exempts a view, a function or a class, from all limits: also those of the project and of the rulebook."""
    setattr(view, _EXEMPT, True)
    return view


def is_exempt(view: Any) -> bool:
    """Returns whether a view is exempt, or the class that made it."""
    return any(getattr(each, _EXEMPT, False) for each in (view, _class_of(view)))


def limits_of_view(view: Any) -> tuple[Any, ...]:
    """Returns the limits that a view carries, the outermost first."""
    attributes = getattr(view, "__dict__", {})
    return tuple(attributes[name] for name in sorted(attributes) if name.startswith(LIMIT_MARK))


def limits_of_handlers(view: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields the methods of a class-based view that have limits of their own, with these."""
    view_class = _class_of(view)
    for method in getattr(view_class, "http_method_names", ()):
        limits = limits_of_view(getattr(view_class, method, None))
        if limits:
            yield method.upper(), limits


def handler_method(view: Any) -> str | None:
    """Returns the HTTP method that a method of a class-based view handles; None if it is none of those."""
    name = getattr(view, "__name__", "")
    return name.upper() if name in ("get", "post", "put", "patch", "delete", "head", "options", "trace") else None


def _class_of(view: Any) -> Any:
    return getattr(view, "view_class", None) or getattr(view, "cls", None)
