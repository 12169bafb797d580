"""Translates the nginx variables of a zone's key into dimensions."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from headgate.rules.imports.nginx_allow_lists import allow_list
from headgate.rules.imports.nginx_conf_parser import Directive
from headgate.rules.imports.rulebook_draft import Draft, attribute_name

_variable = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_DIMENSIONS = {
    "binary_remote_addr": "address/32/128",  # nginx counts every IPv6 address separately
    "remote_addr": "address/32/128",
    "host": "host",
    "server_name": "host",
    "http_host": "host",
    "remote_user": "user",
    "uri": "path",
    "document_uri": "path",
    "request_uri": "path",
    "request_method": "method",
}
_DIFFERENCES = {
    "server_name": "counts are kept for each requested host, not for each server",
    "http_host": "the port does not count",
    "request_uri": "the path counts as it is meant, and its query does not",
}
_PREFIXES = {"http_": "header.", "arg_": "argument.", "cookie_": "cookie."}
_MAX_MAP_DEPTH = 3


class NginxKey(NamedTuple):
    """The dimensions of a zone, and a condition for calls that are not counted."""

    dimensions: list[str]
    exempt: Any = None


class Variables:
    """The variables of one configuration; `maps` are the blocks that define some."""

    def __init__(self, draft: Draft, maps: list[Directive]) -> None:
        self.draft = draft
        self.maps: dict[str, Directive] = {block.arguments[-1]: block for block in maps if block.arguments}

    def key(self, line: int, text: str, depth: int = 0) -> NginxKey:
        """Returns the dimensions of a key such as $binary_remote_addr$uri; none if it has no variable."""
        map_block = self.maps.get(text.replace("{", "").replace("}", "")) if depth < _MAX_MAP_DEPTH else None
        allowed = None if map_block is None else allow_list(map_block, self.maps, self._attribute)
        if map_block is not None and allowed is not None:
            inner = self.key(line, allowed.key, depth + 1)
            if inner.exempt is None:
                if allowed.ignores_case:
                    sentence = f"case matters here in what {map_block.arguments[0]} is, in nginx's map it did not."
                    self.draft.note(map_block.line, sentence)
                return NginxKey(inner.dimensions, allowed.exempt)
        dimensions = [
            self._dimension(line, variable[1] or variable[2], 0) for variable in _variable.finditer(text)
        ]
        return NginxKey(list(dict.fromkeys(dimensions)))

    def _attribute(self, text: str) -> str | None:
        """Returns the attribute of a built-in variable; None if it has none."""
        match = _variable.fullmatch(text)
        dimension = None if match is None else self._builtin_dimension(match[1] or match[2])
        return None if dimension is None else dimension.partition("/")[0]

    def _builtin_dimension(self, variable: str) -> str | None:
        for prefix, attribute_prefix in _PREFIXES.items():
            if variable not in _DIMENSIONS and variable.startswith(prefix) and variable != prefix:
                part = variable.removeprefix(prefix)
                return attribute_prefix + (
                    part.lower().replace("_", "-") if attribute_prefix == "header." else part
                )
        return _DIMENSIONS.get(variable)

    def _dimension(self, line: int, variable: str, depth: int) -> str:
        if variable in _DIFFERENCES:
            self.draft.note(line, f"${variable} became {_DIMENSIONS[variable]}: {_DIFFERENCES[variable]}.")
        dimension = self._builtin_dimension(variable)
        if dimension is not None:
            return dimension
        map_block = self.maps.get(f"${variable}")
        if map_block is not None:
            return self._mapped(line, variable, map_block, depth)
        attribute = attribute_name(variable)
        self.draft.note(
            line, f"${variable} has no equivalent: the attribute {attribute} must be supplied by the caller."
        )
        return attribute

    def _mapped(self, line: int, variable: str, map_block: Directive, depth: int) -> str:
        """Returns the dimension for a variable of a map: mostly another variable, or nothing for exempt calls."""
        values = {word for entry in map_block.block for word in entry.arguments[-1:] if word}
        inner = _variable.fullmatch(next(iter(values))) if len(values) == 1 else None
        what = f"${variable} is made by {map_block.name}, which has no equivalent"
        if inner is None or depth == _MAX_MAP_DEPTH:
            dimension = attribute_name(variable)
            self.draft.note(map_block.line, f"{what}: the attribute {dimension} must be supplied by the caller.")
            return dimension
        dimension = self._dimension(line, inner[1] or inner[2], depth + 1)
        self.draft.note(
            map_block.line,
            f"{what}: calls are counted by {dimension}, also those that it exempts. Name these in the rule's "
            "except, such as except: {address: 10.0.0.0/8}.",
        )
        return dimension
