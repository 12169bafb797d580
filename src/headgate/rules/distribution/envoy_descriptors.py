"""Follows the configuration files of envoyproxy/ratelimit as rulebooks.

    ratelimit.yaml      one file, one domain                  rules have the names of their limits
    config/             a folder of such files, as that service has it     edge.user: rules of the domain edge
                                                              (their label is the name in the file)

rules/imports/envoy_ratelimit.py translates the files; the log reports what has no equivalent, once for each
change. Rule names of a folder always include the domain: counters are stored under a rule's name, and must not
move when a file is added.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from headgate.errors import InvalidRule
from headgate.rules import imports
from headgate.rules.distribution.source import FileSource, RulebookText
from headgate.rules.imports.rulebook_draft import Draft

_SUFFIXES = (".yaml", ".yml")
_log = logging.getLogger("headgate.rules")


def translate_descriptors(content: RulebookText) -> RulebookText:
    """Translates a text with descriptors into a rulebook; returns any other text as it is."""
    text, kind = content.text_and_format
    if kind != "yaml" or not imports.looks_like("envoy", text):
        return content
    return RulebookText(json.dumps(_translate(content)), "json", content.name)


class FolderSource:
    """All descriptor files of a folder, as one rulebook."""

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path).absolute()
        self.name: str = str(path)

    def signature(self) -> Hashable:
        return tuple((file.name, file.signature()) for file in self._files())

    def read(self) -> RulebookText:
        rules: list[Any] = []
        domains: dict[str, str] = {}
        name_draft = Draft()
        for file in self._files():
            document = _translate(file.read())
            domain = document["name"]
            if domain in domains:
                raise InvalidRule(f"{file.name}: the domain {domain} is in {domains[domain]} already.")
            domains[domain] = file.name
            rule_names = {rule["name"]: name_draft.name(f"{domain}.{rule['name']}") for rule in document["rules"]}
            rules += [_rename_rule(rule, rule_names) for rule in document["rules"]]
        return RulebookText(json.dumps({"defaults": {"missing": "one"}, "rules": rules}), "json", self.name)

    def _files(self) -> list[FileSource]:
        sources = [FileSource(path) for path in sorted(self.path.iterdir()) if path.suffix.lower() in _SUFFIXES]
        if not sources:
            raise InvalidRule(f"There is no file that ends with {' or '.join(_SUFFIXES)} in {self.name}.")
        return sources


def _translate(content: RulebookText) -> dict[str, Any]:
    translation = imports.translate(content.text_and_format[0], "envoy", source=content.name, domain=True)
    for note in translation.notes:
        _log.info("%s", imports.with_location(str(note), content.name))
    return translation.document


def _rename_rule(rule: dict[str, Any], rule_names: dict[str, str]) -> dict[str, Any]:
    """Puts the domain into the names of a rule and of those it replaces. Envoy receives the name in the file."""
    renamed = rule | {"name": rule_names[rule["name"]], "label": rule.get("label", rule["name"])}
    if "replaces" in rule:
        renamed["replaces"] = [rule_names[name] for name in rule["replaces"]]
    return renamed
