"""What is wrong with a rulebook, gathered: a reader goes on behind a fault, as far as the rest stands alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headgate.errors import InvalidRule, InvalidRulebook
from headgate.rules.reading.document import Fault, Node, Place

T = TypeVar("T")


class Told(Fault):
    """It rests on something whose fault was told already."""


class Problems:
    def __init__(self) -> None:
        self.found: list[tuple[Place, str]] = []

    @contextmanager
    def under(self, subject: str) -> Iterator[None]:
        """Faults in here are told of this subject, and end only what is in here."""
        try:
            yield
        except Told:
            pass
        except Fault as fault:
            self.add(fault, subject)

    def add(self, fault: Fault, subject: str = "") -> None:
        sentence = f"{subject}: {fault.sentence}" if subject else fault.sentence
        self.found.append((fault.place, f"{sentence}\n  {fault.hint}" if fault.hint else sentence))

    def raise_any(self, source: str | None) -> None:
        if self.found:
            raise self.error(source)

    def error(self, source: str | None) -> InvalidRulebook:
        return InvalidRulebook(self.in_order(), source)

    def in_order(self) -> list[tuple[int | None, str]]:
        """Line and sentence of each, by lines."""
        told = [
            (place.line, f"{place.path}: {sentence}" if place.line is None else sentence)
            for place, sentence in self.found
        ]
        return sorted(told, key=lambda problem: problem[0] or 0)


def placed(node: Node, make: Callable[..., T], *args: object) -> T:
    """What `make` makes; where it objects, at this node."""
    try:
        return make(*args)
    except InvalidRule as error:
        raise Fault(node.place, *_in_two(str(error))) from None


def _in_two(message: str) -> tuple[str, str]:
    """What is wrong, and what to write."""
    for mark in (" is not a limit. ", " is not a length of time. "):
        if mark in message:
            head, _, hint = message.rpartition(mark)
            return head + mark.rstrip(), hint
    head, mark, hint = message.rpartition(": write ")
    return (f"{head}.", f"Write {hint}") if mark else (message, "")
