"""The variables of nginx that counts are kept by, as dimensions of a key."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from headgate.rules.imports.nginx_allow_lists import allow_list
from headgate.rules.imports.nginx_conf_parser import Directive
from headgate.rules.imports.rulebook_draft import Draft, attribute_name

_variable = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_DIMENSIONS = {
    "binary_remote_addr": "address/32/128",  # nginx counts whole addresses of IPv6
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
_DIFFERS = {
    "server_name": "counts are kept for each host that is asked for, not for each server",
    "http_host": "the port does not count",
    "request_uri": "the path counts as it is meant, and its query does not",
}
_PREFIXES = {"http_": "header.", "arg_": "argument.", "cookie_": "cookie."}
_DEEPEST = 3


class Key(NamedTuple):
    """What a count is kept by, and a condition for calls that are not counted."""

    dimensions: list[str]
    exempt: Any = None


class Variables:
    """What the variables of one configuration are; `maps` are the blocks that make some."""

    def __init__(self, draft: Draft, maps: list[Directive]) -> None:
        self.draft = draft
        self.maps: dict[str, Directive] = {one.arguments[-1]: one for one in maps if one.arguments}

    def key(self, line: int, text: str, depth: int = 0) -> Key:
        """The dimensions of a key such as $binary_remote_addr$uri; none if it holds no variable."""
        made = self.maps.get(text.replace("{", "").replace("}", "")) if depth < _DEEPEST else None
        found = None if made is None else allow_list(made, self.maps, self._attribute)
        if made is not None and found is not None:
            inner = self.key(line, found.key, depth + 1)
            if inner.exempt is None:
                if found.ignores_case:
                    sentence = f"case matters here in what {made.arguments[0]} is, in nginx's map it did not."
                    self.draft.note(made.line, sentence)
                return Key(inner.dimensions, found.exempt)
        dimensions = [self._dimension(line, one[1] or one[2], 0) for one in _variable.finditer(text)]
        return Key(list(dict.fromkeys(dimensions)))

    def _attribute(self, text: str) -> str | None:
        """The attribute that a plain variable is; None if it is none."""
        found = _variable.fullmatch(text)
        ours = None if found is None else self._plain(found[1] or found[2])
        return None if ours is None else ours.partition("/")[0]

    def _plain(self, variable: str) -> str | None:
        for prefix, ours in _PREFIXES.items():
            if variable not in _DIMENSIONS and variable.startswith(prefix) and variable != prefix:
                part = variable.removeprefix(prefix)
                return ours + (part.lower().replace("_", "-") if ours == "header." else part)
        return _DIMENSIONS.get(variable)

    def _dimension(self, line: int, variable: str, depth: int) -> str:
        if variable in _DIFFERS:
            self.draft.note(line, f"${variable} became {_DIMENSIONS[variable]}: {_DIFFERS[variable]}.")
        plain = self._plain(variable)
        if plain is not None:
            return plain
        made = self.maps.get(f"${variable}")
        if made is not None:
            return self._mapped(line, variable, made, depth)
        ours = attribute_name(variable)
        self.draft.note(
            line, f"${variable} has no equivalent: the attribute {ours} must be supplied by the caller."
        )
        return ours

    def _mapped(self, line: int, variable: str, made: Directive, depth: int) -> str:
        """A key that a map makes: mostly another variable, or nothing for those who are exempt."""
        values = {word for one in made.block for word in one.arguments[-1:] if word}
        inner = _variable.fullmatch(next(iter(values))) if len(values) == 1 else None
        what = f"${variable} is made by {made.name}, which has no equivalent"
        if inner is None or depth == _DEEPEST:
            ours = attribute_name(variable)
            self.draft.note(made.line, f"{what}: the attribute {ours} must be supplied by the caller.")
            return ours
        ours = self._dimension(line, inner[1] or inner[2], depth + 1)
        self.draft.note(
            made.line,
            f"{what}: calls are counted by {ours}, also those that it exempts. Name these in the rule's except, "
            "such as except: {address: 10.0.0.0/8}.",
        )
        return ours
