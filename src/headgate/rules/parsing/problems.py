"""Collects the problems of a rulebook: parsing goes on after a fault, as far as the rest does not depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from headgate.errors import InvalidRule, InvalidRulebook
from headgate.rules.parsing.document_tree import Fault, Faults, MappingNode, Node, Position, TooLarge

T = TypeVar("T")
N = TypeVar("N")


class AlreadyReported(Fault):
    """Depends on something whose fault was reported before."""


class Problems:
    """The problems that were found so far, each with its position."""

    def __init__(self) -> None:
        self.messages: list[tuple[Position, str]] = []

    @contextmanager
    def under(self, subject: str) -> Iterator[None]:
        """Collects the faults that are raised in this block, under this subject; they end only the block."""
        try:
            yield
        except Fault as fault:
            for single in _unreported(fault):
                self.add(single, subject)

    def add(self, fault: Fault, subject: str = "") -> None:
        message = f"{subject}: {fault.sentence}" if subject else fault.sentence
        self.messages.append((fault.position, f"{message}\n  {fault.hint}" if fault.hint else message))

    def raise_any(self, source: str | None) -> None:
        if self.messages:
            raise self.error(source)

    def error(self, source: str | None) -> InvalidRulebook:
        return InvalidRulebook(self.in_order(), source)

    def in_order(self) -> list[tuple[int | None, str]]:
        """Returns the line and message of each problem, ordered by line."""
        problems = [
            (position.line, f"{position.path}: {sentence}" if position.line is None else sentence)
            for position, sentence in self.messages
        ]
        return sorted(problems, key=lambda problem: problem[0] or 0)


def read_all(read: Callable[[N], T], nodes: Iterable[N]) -> list[T]:
    """Reads all nodes; raises the faults of all together."""
    values: list[T] = []
    faults: list[Fault] = []
    failed: Fault | None = None
    for node in nodes:
        try:
            values.append(read(node))
        except TooLarge:
            raise
        except Fault as fault:
            failed = failed or fault
            faults += _unreported(fault)
    if failed is not None:
        raise Faults(faults) if faults else failed
    return values


def read_entries(table: MappingNode, readers: dict[str, Callable[[Node, str], Any]]) -> dict[str, Any]:
    """Reads all entries of a mapping, each with the reader of its name; raises the faults of all together."""
    values = read_all(lambda name: readers[name](table.entries[name][1], name), table.entries)
    return dict(zip(table.entries, values, strict=True))


def _unreported(fault: Fault) -> list[Fault]:
    """Returns the faults in it that were not reported before."""
    if isinstance(fault, Faults):
        return fault.faults
    return [] if isinstance(fault, AlreadyReported) else [fault]


def at_node(node: Node, make: Callable[..., T], *args: object) -> T:
    """Calls `make`; turns an InvalidRule into a fault at this node."""
    try:
        return make(*args)
    except InvalidRule as error:
        raise Fault(node.position, *_split_hint(str(error))) from None


def _split_hint(message: str) -> tuple[str, str]:
    """Splits an error message into what is wrong, and a hint at what to write instead."""
    for separator in (" is not a limit. ", " is not a length of time. ", " must be more than 0. "):
        if separator in message:
            head, _, hint = message.rpartition(separator)
            return head + separator.rstrip(), hint
    head, separator, hint = message.rpartition(": write ")
    return (f"{head}.", f"Write {hint}") if separator else (message, "")
