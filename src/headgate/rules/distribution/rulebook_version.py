"""A version: one published rulebook, with its author, time and note.

It holds the book twice: `text` as it was written, with its comments, for people and for the next change;
`document` as JSON, for readers without YAML or TOML. Beside the book that JSON may hold what was compiled from it
for gateways (gateway/bundle.py), which is not needed here: `book` leaves it out. A version is stored as one JSON
object. A draft is a version without number and time: the server adds those when it is published.

Laws (tests/rules/distribution/test_rulebook_version.py):
  - a version that is written is read back the same, whatever the text;
  - an invalid version is rejected with a message: it is never partly read;
  - `book` leaves out the fields for gateways, and nothing else;
  - author and note are each one short line without control characters: they appear in logs and terminals.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields

from headgate.errors import InvalidRule

FORMATS = ("yaml", "toml", "json")
MAX_BYTES = 4 * 1024 * 1024  # bytes, of text and document each
MAX_AUTHOR_LENGTH = 100
MAX_NOTE_LENGTH = 500
# Fields of a document that belong to gateways, not to the book.
GATEWAY_FIELDS = ("limits", "zones", "charge_options", "scripts", "warnings", "used_attributes", "texts")

# Line ends, terminal control characters, changes of writing direction, and lone surrogates.
_control_characters = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RulebookVersion:
    """A published rulebook. `rolled_back_to`: the version that published this text first, if it is not new."""

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
        """Returns the version that published this text first."""
        return self.rolled_back_to or self.version

    @property
    def book(self) -> str:
        """Returns the rulebook as JSON. An invalid document is returned as it is: the loader rejects it."""
        try:
            document = json.loads(self.document)
        except (ValueError, RecursionError):
            return self.document
        if not isinstance(document, dict) or document.keys().isdisjoint(GATEWAY_FIELDS):
            return self.document
        return json.dumps({name: value for name, value in document.items() if name not in GATEWAY_FIELDS})

    @classmethod
    def read(cls, raw: str | bytes) -> RulebookVersion:
        """Parses a version from JSON; raises InvalidRule with the reason if it is invalid."""
        try:
            fields_read = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise InvalidRule(f"This is not a version of a rulebook: it is not JSON ({error}).") from None
        if not isinstance(fields_read, dict):
            raise InvalidRule("This is not a version of a rulebook: it is not a JSON object.")
        for field in fields(cls):
            types = _FIELD_TYPES[field.name]
            value = fields_read.get(field.name)
            if type(value) not in types or (type(value) is int and value < 0):
                raise InvalidRule(
                    f"This is not a version of a rulebook: its {field.name} should be "
                    f"{_TYPE_NAMES[types[0]]}, not {str(value)[:40]!r}."
                )
        return cls(**{field.name: fields_read[field.name] for field in fields(cls) if field.name in fields_read})


_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("version", "at_us"), (int,)),
    **dict.fromkeys(("author", "note", "format", "text", "document"), (str,)),
    "rolled_back_to": (int, type(None)),
}
_TYPE_NAMES = {int: "a whole number", str: "a text"}


def draft(
    text: str,
    document: str,
    *,
    format: str,  # noqa: A002
    author: str,
    note: str = "",
    rolled_back_to: int | None = None,
) -> str:
    """Checks a rulebook to be published, and returns it as the JSON object that lacks only version and at_us."""
    if format not in FORMATS:
        raise InvalidRule(f"A rulebook is written in yaml, toml or json, not in {format!r}.")
    _check_size("text", text)
    _check_size("JSON", document)
    fields_of_draft = {
        "author": one_line("author", author, MAX_AUTHOR_LENGTH),
        "note": one_line("note", note, MAX_NOTE_LENGTH),
        "format": format,
        "rolled_back_to": rolled_back_to,
        "text": text,
        "document": document,
    }
    return json.dumps(fields_of_draft, ensure_ascii=False, separators=(",", ":"))


def from_draft(draft: str, version: int, at_us: int) -> RulebookVersion:
    """Returns the version that a draft has become."""
    return RulebookVersion(version=version, at_us=at_us, **json.loads(draft))


def _check_size(what: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRule(f"The rulebook's {what} holds half a character at {error.start}: write UTF-8.") from None
    if size > MAX_BYTES:
        raise InvalidRule(
            f"The rulebook's {what} has {size:,} bytes; at most {MAX_BYTES:,} can be published. "
            "Limits of single customers belong in overrides."
        )


def one_line(what: str, text: str, longest: int) -> str:
    """Strips a text; raises InvalidRule if it is no short printable line."""
    text = text.strip()
    if not text and what == "author":
        raise InvalidRule("The author must not be empty. Say who publishes the rulebook.")
    if len(text) > longest:
        raise InvalidRule(f"The {what} has {len(text)} characters; at most {longest} are kept.")
    if control := _control_characters.search(text):
        raise InvalidRule(f"The {what} is one line without control characters; it holds {control[0]!r}.")
    return text
