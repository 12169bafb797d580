"""What is wrong with a rulebook, gathered: a reader goes on behind a fault, as far as the rest stands alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from headgate.errors import InvalidRule, InvalidRulebook
from headgate.rules.parsing.document_tree import Fault, Faults, Node, Position, Table, TooLarge

T = TypeVar("T")
N = TypeVar("N")


class AlreadyReported(Fault):
    """It rests on something whose fault was told already."""


class Problems:
    def __init__(self) -> None:
        self.found: list[tuple[Position, str]] = []

    @contextmanager
    def under(self, subject: str) -> Iterator[None]:
        """Faults in here are told of this subject, and end only what is in here."""
        try:
            yield
        except Fault as fault:
            for each in _each(fault):
                self.add(each, subject)

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


def every(read: Callable[[N], T], nodes: Iterable[N]) -> list[T]:
    """Reads all of them; raises the faults of all together."""
    found: list[T] = []
    faults: list[Fault] = []
    failed: Fault | None = None
    for node in nodes:
        try:
            found.append(read(node))
        except TooLarge:
            raise
        except Fault as fault:
            failed = failed or fault
            faults += _each(fault)
    if failed is not None:
        raise Faults(faults) if faults else failed
    return found


def every_entry(table: Table, readers: dict[str, Callable[[Node, str], Any]]) -> dict[str, Any]:
    """Reads all entries of a mapping, each by the reader of its name; raises the faults of all together."""
    values = every(lambda name: readers[name](table.entries[name][1], name), table.entries)
    return dict(zip(table.entries, values, strict=True))


def _each(fault: Fault) -> list[Fault]:
    """The faults in it that nobody was told of."""
    if isinstance(fault, Faults):
        return fault.faults
    return [] if isinstance(fault, AlreadyReported) else [fault]


def placed(node: Node, make: Callable[..., T], *args: object) -> T:
    """What `make` makes; where it objects, at this node."""
    try:
        return make(*args)
    except InvalidRule as error:
        raise Fault(node.place, *_in_two(str(error))) from None


def _in_two(message: str) -> tuple[str, str]:
    """What is wrong, and what to write."""
    for mark in (" is not a limit. ", " is not a length of time. ", " must be more than 0. "):
        if mark in message:
            head, _, hint = message.rpartition(mark)
            return head + mark.rstrip(), hint
    head, mark, hint = message.rpartition(": write ")
    return (f"{head}.", f"Write {hint}") if mark else (message, "")
