"""Explains limits in words, and what their engine guarantees: what does "6/minute queue 5" do to a caller?"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from headgate.algorithms.limit import Description, Limit
from headgate.engines.port import StackedEngine
from headgate.errors import InvalidRule

_LABEL_WIDTH = 13


def explain_limits(
    limits: Sequence[Limit], engine: StackedEngine | None = None, nodes: int = 1, width: int = 100
) -> str:
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


def guarantees(engine: StackedEngine | None, limit: Limit, nodes: int) -> Description:
    """Yields what an engine and the layers around it guarantee, from the inside out."""
    if engine is not None:
        yield from guarantees(engine.inner, limit, nodes)
        yield from engine.guarantees(limit, nodes)
