"""Every document that is made here is loaded, so that none is shown that could not be."""

from typing import Any

from headgate.rules import imports, load
from headgate.rules.match import Matcher
from headgate.rules.rule import Rulebook


def document_and_notes(text: str, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """The document, and its notes with their lines before them."""
    translated = imports.translate(text, **options)
    load.from_mapping(translated.document)
    return translated.document, [str(note) for note in translated.notes]


def rules(text: str, **options: Any) -> list[dict[str, Any]]:
    translated: list[dict[str, Any]] = document_and_notes(text, **options)[0]["rules"]
    return translated


def book(text: str, **options: Any) -> Rulebook:
    return load.from_mapping(imports.translate(text, **options).document)


def matched_rules(matcher: Matcher, **attributes: str) -> list[str]:
    """The names of the rules that a call meets."""
    return [match.rule.name for match in matcher.match(attributes)]
