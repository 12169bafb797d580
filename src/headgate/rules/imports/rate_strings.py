"""limits, flask-limiter and slowapi: translates rate strings such as "5/second;100/hour" or "10 per 2 minutes".

The text holds such rates, or the settings of flask-limiter that hold them:

    RATELIMIT_DEFAULT = "200/day;50/hour"
    RATELIMIT_STRATEGY = "moving-window"

All of them become one rule, counted by the client's address, as in the examples of these libraries.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from headgate.errors import InvalidRule
from headgate.limit_syntax import parse
from headgate.rules.imports.rulebook_draft import Draft, Translation, one_or_all

_rate = re.compile(
    r"\s*([0-9]{1,15})\s*(?:r?/|\s+per\s+)\s*(?:([0-9]{1,9})\s*)?"
    r"(?:(second|minute|hour|day|month|year)s?|(s|sec|m|min|h|hr|d))(?![A-Za-z])\s*",
    re.I,
)
_setting = re.compile(r"""\s*(?:app\.config\[["'])?RATELIMIT_(\w+)(?:["']\])?\s*[=:]\s*(.*?)\s*,?\s*""")
_UNITS = {
    "second": ("s", 1),
    "minute": ("m", 1),
    "hour": ("h", 1),
    "day": ("d", 1),
    "month": ("d", 30),
    "year": ("d", 360),
}


_UNIT_ABBREVIATIONS = {
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
}


class _Strategy(NamedTuple):
    """A strategy of the limits library: the algorithm here, and how it differs."""

    word: str
    difference: str | None


STRATEGIES = {
    "fixed-window": _Strategy(
        "fixed", "there a window begins with the first call that is counted; here windows are cut by the clock."
    ),
    "moving-window": _Strategy("log", None),
    "sliding-window-counter": _Strategy(
        "sliding",
        "there the last window counts by the part of it that is left; here ten cells are counted, exactly.",
    ),
}


def looks_like(text: str) -> bool:
    """Returns whether a text holds rate strings, or settings with some."""
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_setting.fullmatch(line) or _rate.match(line.strip("\"' ")) for line in lines)


def translate(text: str, name: str | None = None, strategy: str = "fixed-window") -> Translation:
    """Translates all rates in the text into one rule."""
    draft = Draft()
    rates: list[str] = []
    for line, line_text in enumerate(text.splitlines(), 1):
        setting = _setting.fullmatch(line_text)
        value = (setting[2] if setting else line_text).strip().strip("\"'")
        if setting is None or setting[1] in ("DEFAULT", "DEFAULTS", "APPLICATION"):
            rates += [f"{line}:{part}" for part in re.split(r"[,;|\n]", value) if part.strip()]
        elif setting[1] == "STRATEGY":
            strategy = value
        else:
            draft.note(line, f"RATELIMIT_{setting[1]} is left out: it is not part of a rulebook.")
    if strategy not in STRATEGIES:
        raise InvalidRule(f'"{strategy}" is not a strategy. Known are {", ".join(STRATEGIES)}.')
    if not rates:
        raise InvalidRule('No rate was found. Write them as "5/second;100/hour" or "10 per 2 minutes".')
    kind, difference = STRATEGIES[strategy]
    limits = [_limit(draft, rate, kind) for rate in rates]
    if difference:
        draft.note(None, f"{strategy} became {kind}: {difference}")
    draft.note(
        None,
        "Calls are counted by address (IPv6 by /64), for all routes together: change the key if yours was not "
        "get_remote_address, and give routes with limits of their own a rule with a path.",
    )
    draft.rule(name=draft.name(name or "limits"), key="address", limit=one_or_all(limits))
    return draft.build(name=name)


def _limit(draft: Draft, rate: str, kind: str) -> str:
    line, _, text = rate.partition(":")
    match = _rate.fullmatch(text.strip("\"' "))
    if match is None:
        raise InvalidRule(f'line {line}: "{text.strip()[:60]}" is not a rate. Write 5/second or 10 per 2 minutes.')
    name = match[3].lower() if match[3] else _UNIT_ABBREVIATIONS[match[4].lower()]
    unit, days = _UNITS[name]
    count = int(match[2] or 1) * days
    if days > 1:
        draft.note(int(line), f"a {name} is {days} days there, and so it is here: {count}{unit}.")
    return parse(f"{match[1]}/{count}{unit} {kind}").text
