"""A rulebook while it is being translated: rules with unique names, and notes on what has no equivalent."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_MAX_NAME_LENGTH = 64

Document = dict[str, Any]


class TranslationNote(NamedTuple):
    """Something that has no equivalent, or means something else here, and what was done instead."""

    line: int | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence if self.line is None else f"line {self.line}: {self.sentence}"


class Translation(NamedTuple):
    """A rulebook as a document, to be loaded or written down, and notes for its reader."""

    document: Document
    notes: list[TranslationNote]


class Draft:
    """Rules and notes, in the order in which they were added."""

    def __init__(self) -> None:
        self.rules: list[Document] = []
        self.conditions: Document = {}
        self._notes: list[TranslationNote] = []
        self._names: set[str] = set()

    def note(self, line: int | None, sentence: str) -> None:
        """Adds a note, once."""
        note = TranslationNote(line, sentence)
        if note not in self._notes:
            self._notes.append(note)

    def name(self, preferred: str, otherwise: str = "rule") -> str:
        """Returns a name that no other rule has: the preferred one, as far as it is valid and free."""
        base = re.sub(r"[^A-Za-z0-9_.-]+", "-", preferred).strip("-._")[:_MAX_NAME_LENGTH] or otherwise
        name, count = base, 1
        while name in self._names:
            count += 1
            ending = f"-{count}"
            name = base[: _MAX_NAME_LENGTH - len(ending)] + ending
        self._names.add(name)
        return name

    def rule(self, **fields: Any) -> None:
        """Adds a rule; fields that are None are left out."""
        self.rules.append({name: value for name, value in fields.items() if value is not None})

    def build(self, **book_fields: Any) -> Translation:
        """Returns the translation: the fields of the book, the shared conditions, the rules."""
        if not self.rules:
            self.note(None, "No limit was found that could be translated: the rulebook is empty.")
        document = {name: value for name, value in book_fields.items() if value}
        if self.conditions:
            document["conditions"] = self.conditions
        document["rules"] = self.rules
        return Translation(document, sorted(self._notes, key=lambda note: note.line or 0))


def attribute_name(text: str, otherwise: str = "value") -> str:
    """Returns a valid attribute name: lower-case letters, digits and _, beginning with a letter."""
    name = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")
    return name if re.match(r"[a-z]", name) else f"{otherwise}_{name}".rstrip("_")


def one_or_all(values: list[Any]) -> Any:
    """Returns the item of a list of one, or the list."""
    return values[0] if len(values) == 1 else values
