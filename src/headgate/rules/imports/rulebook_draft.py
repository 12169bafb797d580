"""A translation while it is being made: rules with names of their own, and notes on what could not be kept."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_LONGEST_NAME = 64

Document = dict[str, Any]


class Note(NamedTuple):
    """Something that has no equivalent, or means something else here, and what was done instead."""

    line: int | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence if self.line is None else f"line {self.line}: {self.sentence}"


class Translation(NamedTuple):
    """A rulebook as a document, to be loaded or written down, and what its reader should know."""

    document: Document
    notes: list[Note]


class Draft:
    """Rules and notes, in the order in which they were found."""

    def __init__(self) -> None:
        self.rules: list[Document] = []
        self.conditions: Document = {}
        self._notes: list[Note] = []
        self._names: set[str] = set()

    def note(self, line: int | None, sentence: str) -> None:
        note = Note(line, sentence)
        if note not in self._notes:
            self._notes.append(note)

    def name(self, wanted: str, otherwise: str = "rule") -> str:
        """A name that no other rule has: the wanted one, as far as it can be a name."""
        base = re.sub(r"[^A-Za-z0-9_.-]+", "-", wanted).strip("-._")[:_LONGEST_NAME] or otherwise
        name, count = base, 1
        while name in self._names:
            count += 1
            ending = f"-{count}"
            name = base[: _LONGEST_NAME - len(ending)] + ending
        self._names.add(name)
        return name

    def rule(self, **fields: Any) -> None:
        """One more rule; what is None is not said."""
        self.rules.append({name: value for name, value in fields.items() if value is not None})

    def translated(self, **head: Any) -> Translation:
        """The document: what is said of all rules, the conditions they share, the rules."""
        if not self.rules:
            self.note(None, "No limit was found that could be translated: the rulebook is empty.")
        document = {name: value for name, value in head.items() if value}
        if self.conditions:
            document["conditions"] = self.conditions
        document["rules"] = self.rules
        return Translation(document, sorted(self._notes, key=lambda note: note.line or 0))


def attribute_name(text: str, otherwise: str = "value") -> str:
    """A name that an attribute can have: small letters, digits and _, beginning with a letter."""
    name = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")
    return name if re.match(r"[a-z]", name) else f"{otherwise}_{name}".rstrip("_")


def one_or_all(values: list[Any]) -> Any:
    """A list of one is written without its brackets."""
    return values[0] if len(values) == 1 else values
