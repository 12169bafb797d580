"""An edition: one published rulebook, with who published it, when and why.

It holds the book twice: `text` as it was written, with its comments, for people and for the next one who changes
it; `document` as plain JSON, for whoever reads it without YAML or TOML. Beside the book that JSON may hold what
was worked out of it for gateways (gateway/bundle.py), which nobody here needs: `book` is without it. An edition is
written as one JSON object. A draft is an edition without number and time: those are given where it is published.

Laws (tests/rules/distribution/test_version.py):
  - what was written is read back the same, whatever the text;
  - what cannot be an edition is refused with a sentence: it is never half read;
  - what stands beside the book for gateways is not read with it, and nothing else is left out;
  - author and note are each one short line without control characters: they are shown in logs and terminals.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from headgate.errors import InvalidRule

FORMATS = ("yaml", "toml", "json")
LARGEST = 4 * 1024 * 1024  # bytes, of text and document each
LONGEST_AUTHOR = 100
MAX_NOTE_LENGTH = 500
# Fields of a document that are not the book's.
GATEWAY_FIELDS = ("limits", "zones", "terms", "scripts", "warnings", "texts")

# Ends of lines, what moves a terminal's cursor, what turns the direction of writing, and half characters.
_unprintable = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RulebookVersion:
    """See above. `rolled_back_to`: the edition where this text was published first, if it is not new."""

    version: int
    at_us: int
    author: str
    note: str
    format: str
    text: str
    document: str
    rolled_back_to: int | None = None

    @property
    def origin(self) -> int:
        """The edition where this text was published first."""
        return self.rolled_back_to or self.version

    @property
    def book(self) -> str:
        """The rulebook as JSON. What cannot be one is left as it is, for whoever reads rulebooks to refuse."""
        try:
            found = json.loads(self.document)
        except (ValueError, RecursionError):
            return self.document
        if not isinstance(found, dict) or found.keys().isdisjoint(GATEWAY_FIELDS):
            return self.document
        return json.dumps({name: value for name, value in found.items() if name not in GATEWAY_FIELDS})

    def written(self) -> str:
        return _json(asdict(self))

    @classmethod
    def read(cls, raw: str | bytes) -> RulebookVersion:
        """The edition that stands there as JSON; InvalidRule says why it is none."""
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise InvalidRule(f"This is not an edition of a rulebook: it is not JSON ({error}).") from None
        if not isinstance(found, dict):
            raise InvalidRule("This is not an edition of a rulebook: it is not a JSON object.")
        for field in fields(cls):
            wanted = _KINDS[field.name]
            value = found.get(field.name)
            if type(value) not in wanted or (type(value) is int and value < 0):
                raise InvalidRule(
                    f"This is not an edition of a rulebook: its {field.name} should be "
                    f"{_NAMES[wanted[0]]}, not {str(value)[:40]!r}."
                )
        return cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("version", "at_us"), (int,)),
    **dict.fromkeys(("author", "note", "format", "text", "document"), (str,)),
    "rolled_back_to": (int, type(None)),
}
_NAMES = {int: "a whole number", str: "a text"}


def draft(
    text: str,
    document: str,
    *,
    format: str,  # noqa: A002
    author: str,
    note: str = "",
    rolled_back_to: int | None = None,
) -> str:
    """What is to be published, checked, as the JSON object that lacks only version and at_us."""
    if format not in FORMATS:
        raise InvalidRule(f"A rulebook is written in yaml, toml or json, not in {format!r}.")
    _check_size("text", text)
    _check_size("JSON", document)
    return _json(
        {
            "author": one_line("author", author, LONGEST_AUTHOR),
            "note": one_line("note", note, MAX_NOTE_LENGTH),
            "format": format,
            "rolled_back_to": rolled_back_to,
            "text": text,
            "document": document,
        }
    )


def from_draft(draft: str, version: int, at_us: int) -> RulebookVersion:
    """The edition that a draft has become."""
    return RulebookVersion(version=version, at_us=at_us, **json.loads(draft))


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _check_size(what: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRule(f"The rulebook's {what} holds half a character at {error.start}: write UTF-8.") from None
    if size > LARGEST:
        raise InvalidRule(
            f"The rulebook's {what} has {size:,} bytes; at most {LARGEST:,} can be published. "
            "Limits of single customers belong in overrides."
        )


def one_line(what: str, text: str, longest: int) -> str:
    """The text without what surrounds it; a sentence if it cannot be shown in one line."""
    text = text.strip()
    if not text and what == "author":
        raise InvalidRule("Who publishes this? The author must not be empty.")
    if len(text) > longest:
        raise InvalidRule(f"The {what} has {len(text)} characters; at most {longest} are kept.")
    if found := _unprintable.search(text):
        raise InvalidRule(f"The {what} is one line without control characters; it holds {found[0]!r}.")
    return text
