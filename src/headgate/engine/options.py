"""What is put around an engine, by URL options or by keywords:

    redis://host:6379/0?deadline=50ms&fallback=local&memo=on&lease=100ms&lease_units=500&nodes=4

    deadline      how long a question may take: 1s, and 50ms where a fallback is chosen
    fallback      what is done when the engine gives no answer in time: allow, deny, or local
    memo          on: a denial is answered again here until its retry_after
    lease         how long permits of hot keys may be held ahead; lease_units bounds how many
    nodes         how many processes share the limits when the engine is gone, if that is known beforehand: each
                  has the rate divided by it, and at least one unit

Each engine around the engine states its law in its own file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlencode

from headgate.errors import InvalidRule

Instead = Literal["allow", "deny", "local"]
FALLBACKS: tuple[Instead, ...] = get_args(Instead)

PATIENT = 1.0  # seconds that an answer is waited for
PROMPT = 0.05  # where something else can answer, or nobody needs it

_span = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(us|ms|s|)$")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
_SWITCH = {"on": True, "1": True, "true": True, "yes": True, "off": False, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Options:
    """Times in seconds. None: not chosen."""

    deadline: float | None = None
    fallback: Instead | None = None
    memo: bool = False
    lease: float | None = None
    lease_units: int | None = None
    nodes: int | None = None

    def with_given(self, given: dict[str, Any]) -> Options:
        """With keywords, which speak louder than the URL."""
        for name in given:
            if name not in _NAMES:
                raise InvalidRule(f'An engine has no option "{name}".{_near(name, _NAMES)}')
        chosen = {name: _checked(name, value) for name, value in given.items() if value is not None}
        return replace(self, **chosen)

    @property
    def hold_us(self) -> int | None:
        """How long permits may be held ahead."""
        return None if self.lease is None else round(self.lease * 1_000_000)

    @property
    def patience(self) -> float:
        """The deadline, chosen or not."""
        return self.deadline if self.deadline is not None else PROMPT if self.fallback else PATIENT


_NAMES = tuple(field.name for field in fields(Options))


def split(url: str) -> tuple[str, Options]:
    """The URL without our options, and them."""
    plain, mark, query = url.partition("?")
    if not mark:
        return url, Options()
    given = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _NAMES}
    rest = [(name, value) for name, value in given if name not in _NAMES]
    for name, _ in rest:
        near = get_close_matches(name, _NAMES, 1, 0.75)
        if near:
            raise InvalidRule(f'The engine\'s URL has "{name}", which is no option. Did you mean {near[0]}?')
    return f"{plain}?{urlencode(rest)}" if rest else plain, Options().with_given(ours)


def _checked(name: str, value: Any) -> Any:
    match name:
        case "deadline" | "lease":
            return _seconds(name, value)
        case "lease_units" | "nodes":
            if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
                raise InvalidRule(f"{name} is a whole number of at least 1, not {value!r}.")
            return int(value)
        case "memo":
            if value in (True, False):
                return bool(value)
            if str(value).lower() not in _SWITCH:
                raise InvalidRule(f"memo is on or off, not {value!r}.")
            return _SWITCH[str(value).lower()]
    if value not in FALLBACKS:
        raise InvalidRule(f"fallback is allow, deny or local, not {value!r}.{_near(str(value), FALLBACKS)}")
    return value


def _seconds(name: str, value: Any) -> float:
    found = _span.match(str(value)) if not isinstance(value, bool) else None
    if found is None or float(found[1]) == 0:
        raise InvalidRule(f"{name} is a length of time, such as 50ms or 0.05 (seconds), not {value!r}.")
    return float(found[1]) * _SECONDS[found[2]]


def _near(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word, known, 1)
    return f" Did you mean {near[0]}?" if near else f" Known: {', '.join(known)}."
