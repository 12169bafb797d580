"""Descriptors as rules: the files of envoyproxy/ratelimit, followed as they are.

    ratelimit.yaml      one file, one domain                  rules are called what their limits are called
    config/             a folder of such files, as that service has it     edge.user: rules of the domain edge
                                                              (their label is the name in the file)

What is read becomes a rulebook, by rules/imports/envoy_ratelimit.py; what has no equivalent is logged, once for
each change. Rules of a folder carry their domain, whatever else is in the folder: counts are filed under a rule's
name, and must not move when a file is added.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from headgate.errors import InvalidRule
from headgate.rules import imports
from headgate.rules.distribution.source import FileSource, Paper
from headgate.rules.imports.rulebook_draft import Draft

_SUFFIXES = (".yaml", ".yml")
_log = logging.getLogger("headgate.rules")


def as_book(paper: Paper) -> Paper:
    """A paper that describes descriptors as one that says rules; any other as it is."""
    text, kind = paper.plain
    if kind != "yaml" or not imports.looks_like("envoy", text):
        return paper
    return Paper(json.dumps(_translated(paper)), "json", paper.name)


class FolderSource:
    """All such files of a folder, as one rulebook."""

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path).absolute()
        self.name: str = str(path)

    def signature(self) -> Hashable:
        return tuple((file.name, file.signature()) for file in self._files())

    def read(self) -> Paper:
        rules: list[Any] = []
        domains: dict[str, str] = {}
        names = Draft()
        for file in self._files():
            found = _translated(file.read())
            domain = found["name"]
            if domain in domains:
                raise InvalidRule(f"{file.name}: the domain {domain} is in {domains[domain]} already.")
            domains[domain] = file.name
            ours = {rule["name"]: names.name(f"{domain}.{rule['name']}") for rule in found["rules"]}
            rules += [_renamed(rule, ours) for rule in found["rules"]]
        return Paper(json.dumps({"defaults": {"missing": "one"}, "rules": rules}), "json", self.name)

    def _files(self) -> list[FileSource]:
        found = [FileSource(path) for path in sorted(self.path.iterdir()) if path.suffix.lower() in _SUFFIXES]
        if not found:
            raise InvalidRule(f"There is no file that ends with {' or '.join(_SUFFIXES)} in {self.name}.")
        return found


def _translated(paper: Paper) -> dict[str, Any]:
    translated = imports.translate(paper.plain[0], "envoy", source=paper.name, domain=True)
    for note in translated.notes:
        _log.info("%s", imports.located(str(note), paper.name))
    return translated.document


def _renamed(rule: dict[str, Any], ours: dict[str, str]) -> dict[str, Any]:
    """The rule under its name in the folder, and so whatever it refers to. Envoy is told the name in the file."""
    named = rule | {"name": ours[rule["name"]], "label": rule.get("label", rule["name"])}
    if "replaces" in rule:
        named["replaces"] = [ours[name] for name in rule["replaces"]]
    return named
