"""Explains limits in words, and what their engine guarantees: what does "6/minute queue 5" do to a caller?"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Protocol, runtime_checkable

from headgate.algorithms.limit import Description, Limit
from headgate.errors import InvalidRule

_LABEL_WIDTH = 13


@runtime_checkable
class GuaranteeSource(Protocol):
    """An engine that describes what it guarantees for a limit, with so many processes using it."""

    def guarantees(self, limit: Limit, nodes: int) -> Description: ...


def explain_limits(limits: Sequence[Limit], engine: object = None, nodes: int = 1, width: int = 100) -> str:
    """Returns a text that explains limits, and what the engine guarantees for each."""
    if type(nodes) is not int or nodes < 1:
        raise InvalidRule(f"nodes is a whole number, at least 1; not {nodes!r}.")
    lines = []
    for limit in limits:
        lines.append(limit.text)
        for label, text in (*limit.explain(), *guarantees(engine, limit, nodes)):
            indent = " " * (_LABEL_WIDTH + 2)
            lines.append(fill(text, width, initial_indent=f"  {label:<{_LABEL_WIDTH}}", subsequent_indent=indent))
        lines.append("")
    if len(limits) > 1:
        lines.append("They are decided together: a call passes all of them, or is charged to none.\n")
    return "\n".join(lines)


def guarantees(engine: object, limit: Limit, nodes: int) -> Description:
    """Yields what an engine and the layers around it guarantee, from the inside out."""
    inner = getattr(engine, "inner", getattr(engine, "engine", None))
    if inner is not None:  # not its truth: an in-memory engine that has counted nothing is empty, and false
        yield from guarantees(inner, limit, nodes)
    if isinstance(engine, GuaranteeSource):
        yield from engine.guarantees(limit, nodes)
