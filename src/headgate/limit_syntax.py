"""Parses limits from text: "100/s burst 200", "600/minute sliding", "20 slots".

    AMOUNT/PERIOD                             a token bucket; its burst is the amount
    AMOUNT/PERIOD burst N                     a token bucket of N
    AMOUNT/PERIOD fixed [in ZONE]             a fixed window; week, month and year are the calendar's
    AMOUNT/PERIOD sliding [cells N]           a sliding window in cells
    AMOUNT/PERIOD log                         a sliding log
    AMOUNT/PERIOD queue N [nodelay|delay N]   nginx's leaky bucket
    AMOUNT/PERIOD smooth [warmup SPAN] [cold X] [burst SPAN]      Guava's pacing
    N slots [ttl SPAN]                        concurrency

PERIOD and SPAN are a unit, or a number and a unit: s, 30s, minute, 5m, hour, day, week, 100ms. Several limits on
one key are joined by semicolons: "10/s; 500/hour". An amount may hold underscores or commas: 1_000_000/day.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple, NoReturn

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import DAY, EXACT, HOUR, MINUTE, SECOND, WEEK, YEAR, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.calendar import time_zone
from headgate.errors import InvalidRule

_UNITS = {
    "us": 1, "microsecond": 1, "ms": 1000, "millisecond": 1000,
    "s": SECOND, "sec": SECOND, "second": SECOND,
    "m": MINUTE, "min": MINUTE, "minute": MINUTE,
    "h": HOUR, "hr": HOUR, "hour": HOUR,
    "d": DAY, "day": DAY, "w": WEEK, "week": WEEK, "month": 30 * DAY, "y": YEAR, "year": YEAR,
}  # fmt: skip

_KIND_OF_OPTION = {
    "cells": "sliding", "cold": "smooth", "delay": "queue", "in": "fixed", "nodelay": "queue", "ttl": "slots",
    "warmup": "smooth",
}  # fmt: skip
_VALUE_OF_OPTION = {
    "cells": "a whole number",
    "delay": "a whole number",
    "in": "a time zone, such as Europe/Berlin",
    "ttl": "a length of time, such as 5s",
}
_ABBREVIATIONS = ("us", "ms", "s", "m", "h", "d", "w", "y")  # have no plural
_CALENDAR = ("week", "month", "year")

_ROUNDING = 1e-14  # 1.1ms is 1100.0000000000002 us in doubles

_RATE = re.compile(r"(?P<amount>[\d_,.]+)\s*(?:/|per\b)\s*(?P<count>\d*(?:\.\d+)?)\s*(?P<unit>[a-zµ]+)")
_SLOTS = re.compile(r"(?P<amount>[\d_,]+)\s*slots?")
_DIGITS = re.compile(r"[0-9]{1,30}")
_SPAN = re.compile(r"(?P<count>[0-9]*(?:\.[0-9]+)?)\s*(?P<unit>[a-zµ]+)")
_SMALL_UNITS = re.compile(r"([mu])(?:s|illi|icro)?secs?$")
_BARE_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")


@lru_cache(maxsize=4096)  # take_all gets limits as text, call after call
def parse_all(text: str) -> tuple[Limit, ...]:
    """Parses every limit in the text: "10/s; 500/hour" are two."""
    pieces = [piece.strip() for piece in text.split(";")]
    limits = [piece for piece in pieces if piece]
    if not limits:
        _fail(text, "It is empty.")
    if len(limits) < len(pieces):
        _fail(text, f"A semicolon separates two limits. Did you mean {'; '.join(limits)}?")
    return tuple(parse(piece) for piece in pieces)


def parse(text: str) -> Limit:
    """Parses one limit from its text form.

    >>> parse("100/s burst 200")
    <TokenBucket 100/s burst 200>
    """
    return _LimitParser(text).limit()


def parse_span(text: str) -> int:
    """Parses a length of time, such as "50ms" or "10m", and returns it in microseconds."""
    return _SpanParser(text).span(text.strip())


class _Rate(NamedTuple):
    """The part of a limit before its kind: AMOUNT/PERIOD."""

    amount: str
    per: float  # seconds
    unit: str | None  # if the period is one unit, such as "month"


class _LimitParser:
    """Parses the text of one limit, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self.kind = ""

    def limit(self) -> Limit:
        if match := _SLOTS.match(self.text):
            return self._slots(match)
        match = _RATE.match(self.text.lower())
        if not match:
            self.fail()
        words = self.text[match.end() :].split()
        kind = words[0].lower() if words else "burst"
        if kind not in _KINDS:
            self.unexpected(words, tuple(_KINDS))
        self.kind = kind
        unit = self.unit(match["unit"])
        per = self.microseconds(match["count"], unit) / SECOND
        rate = _Rate(self.amount(match["amount"]), per, None if match["count"] else unit)
        return _KINDS[kind](self, rate, words[1:]) if words else TokenBucket(self.parse_whole(rate.amount), per)

    def _burst(self, rate: _Rate, rest: list[str]) -> Limit:
        return TokenBucket(self.parse_whole(rate.amount), rate.per, self.number("burst", rest))

    def _fixed(self, rate: _Rate, rest: list[str]) -> Limit:
        zone = self.option("in", rest)
        calendar_unit = rate.unit if rate.unit in _CALENDAR or zone else None
        if zone and calendar_unit not in ("day", *_CALENDAR):
            self.fail("Only a day, week, month or year can follow a time zone.")
        if zone:
            time_zone(zone)
        return FixedWindow(self.parse_whole(rate.amount), calendar_unit or rate.per, zone)

    def _sliding(self, rate: _Rate, rest: list[str]) -> Limit:
        cells = self.option("cells", rest)
        return SlidingWindow(
            self.parse_whole(rate.amount), rate.per, 10 if cells is None else self.parse_whole(cells)
        )

    def _log(self, rate: _Rate, rest: list[str]) -> Limit:
        self.nothing_after("log", rest)
        return SlidingLog(self.parse_whole(rate.amount), rate.per)

    def _slots(self, match: re.Match[str]) -> Slots:
        self.kind = "slots"
        rest = self.text[match.end() :].split()
        ttl = self.option("ttl", rest)
        amount = self.parse_whole(self.amount(match["amount"]))
        return Slots(amount) if ttl is None else Slots(amount, self.span(ttl) / SECOND)

    def _queue(self, rate: _Rate, rest: list[str]) -> Limit:
        burst = self.number("queue", rest[:1])
        after = rest[1:]
        if after and after[0].lower() == "nodelay":
            self.nothing_after("nodelay", after[1:])
            return LeakyBucket(self.parse_whole(rate.amount), rate.per, burst, None)
        delay = self.option("delay", after)
        undelayed = 0 if delay is None else self.parse_whole(delay)
        return LeakyBucket(self.parse_whole(rate.amount), rate.per, burst, undelayed)

    def _smooth(self, rate: _Rate, rest: list[str]) -> Limit:
        options: dict[str, float] = {}
        while rest:
            name = rest.pop(0).lower()
            if name not in ("warmup", "cold", "burst"):
                self.unexpected([name, *rest], ("warmup", "cold", "burst"))
            if not rest:
                what = "a number" if name == "cold" else "a length of time, such as 5s"
                self.fail(f'After "{name}" comes {what}.')
            word = rest.pop(0)
            if name == "cold":
                options[name] = self.parse_decimal(word)
            else:
                options[name] = self.span(word, least=0 if name == "burst" else 1) / SECOND
        parse_amount = self.parse_decimal if "." in rate.amount else self.parse_whole
        return Smooth(parse_amount(rate.amount), rate.per, **options)

    def amount(self, digits: str) -> str:
        return digits.replace("_", "").replace(",", "")

    def parse_whole(self, digits: str) -> int:
        if not _DIGITS.fullmatch(digits):
            if digits.isdecimal() and not digits.isascii():
                self.fail(f"{digits[:40]} is not written in the digits 0 to 9.")
            if digits.isdecimal():
                self.fail("An amount has at most 30 digits.")
            self.fail(f"{digits[:40]} is not a whole number.")
        return int(digits)

    def parse_decimal(self, digits: str) -> float:
        try:
            return float(digits)
        except ValueError:
            self.fail(f"{digits} is not a number.")

    def number(self, name: str, words: list[str]) -> int:
        if len(words) != 1:
            self.check_kind(words[1:], size=words[0] if words else "")
            self.fail(f'After "{name}" comes one whole number.')
        return self.parse_whole(self.amount(words[0]))

    def option(self, name: str, words: list[str]) -> str | None:
        if not words:
            return None
        if words[0].lower() != name:
            self.unexpected(words, (name,))
        if len(words) == 1:
            self.fail(f'After "{name}" comes {_VALUE_OF_OPTION[name]}.')
        self.nothing_after(f"{name} {words[1]}", words[2:])
        return words[1]

    def nothing_after(self, name: str, words: list[str]) -> None:
        if words:
            self.check_kind(words)
            self.fail(f'Nothing was expected after "{name}", but there is "{words[0]}".')

    def unexpected(self, words: list[str], expected: tuple[str, ...]) -> NoReturn:
        """Raises InvalidRule for a word that means nothing there, and proposes the one that was probably meant."""
        self.check_kind(words)
        matches = get_close_matches(words[0].lower(), (*expected, *_KIND_OF_OPTION), 1, 0.5)
        hint = f'Did you mean "{matches[0]}"?' if matches else f"Known here: {', '.join(expected)}."
        self.fail(f'The word "{words[0]}" is not expected there. {hint}')

    def check_kind(self, words: list[str], size: str = "") -> None:
        """Raises InvalidRule for an option of another kind of limit, and names that kind."""
        option = words[0].lower() if words else ""
        kind = _KIND_OF_OPTION.get(option, self.kind)
        if kind == self.kind:
            return
        why = f'"{option}" goes with "{kind}"'
        if match := _RATE.match(self.text.lower()):
            kind_and_size = f"{kind} {size or 5}" if kind == "queue" else kind
            proposal = f"{self.text[: match.end()]} {kind_and_size} {' '.join(words)}"
            with suppress(InvalidRule):
                parse(proposal)
                why += f": write {proposal}"
        self.fail(f"{why}.")

    def unit(self, word: str) -> str:
        singular = word.removesuffix("s")
        if word in _UNITS:
            return word
        if singular in _UNITS and singular not in _ABBREVIATIONS:
            return singular
        milli_or_micro = _SMALL_UNITS.match(word)
        unit_names = [name for name in _UNITS if len(name) > 3 or name == "day"]
        if milli_or_micro:  # msec and usecs are nearer to "second" than to what they mean
            matches = ["ms" if milli_or_micro[1] == "m" else "us"]
        else:
            matches = [singular] if singular in _UNITS else get_close_matches(word, unit_names, 1, 0.5)
        if not matches:
            self.fail(f'"{word}" is not a unit of time.')
        corrected = re.sub(rf"(?<![a-z]){re.escape(word)}(?![a-z])", matches[0], self.text, count=1, flags=re.I)
        return self.fail(f"Did you mean {corrected}?")

    def microseconds(self, count: str, unit: str, least: int = 1) -> int:
        length = float(count or 1) * _UNITS[unit]
        if length >= EXACT:
            self.fail("A period is at most 285 years.")
        us = round(length)
        if us < least or abs(length - us) > us * _ROUNDING:
            self.fail("A period is a whole number of microseconds, at least one.")
        return us

    def span(self, word: str, least: int = 1) -> int:
        match = _SPAN.fullmatch(word.lower())
        if not match:
            self.fail(f'"{word}" is not a length of time, such as 5s or 2m.')
        return self.microseconds(match["count"], self.unit(match["unit"]), least)

    def fail(self, why: str = "") -> NoReturn:
        _fail(self.text, why)


# The word after the period, and what parses the rest. A new algorithm adds its word here.
_KINDS: dict[str, Callable[[_LimitParser, _Rate, list[str]], Limit]] = {
    "burst": _LimitParser._burst,
    "fixed": _LimitParser._fixed,
    "sliding": _LimitParser._sliding,
    "log": _LimitParser._log,
    "queue": _LimitParser._queue,
    "smooth": _LimitParser._smooth,
}


class _SpanParser(_LimitParser):
    """Parses the text of a length of time."""

    def microseconds(self, count: str, unit: str, least: int = 1) -> int:
        if count and not float(count):
            self.fail_zero()
        return super().microseconds(count, unit, least)

    def fail_zero(self) -> NoReturn:
        raise InvalidRule(
            f'"{self.text}" must be more than 0. Write a number and a unit, such as 50ms, 30s or 10m.'
        )

    def fail(self, why: str = "") -> NoReturn:
        bare = _BARE_NUMBER.fullmatch(self.text)
        if bare and not float(self.text):
            self.fail_zero()
        if bare:
            raise InvalidRule(
                f'"{self.text}" is not a length of time. It has no unit: write {self.text}ms or {self.text}s.'
            )
        has_number = self.text[:1] in "0123456789."  # a word alone is no misspelled unit
        hint = f" {why}" if why.startswith("A period") or (has_number and why.startswith("Did")) else ""
        raise InvalidRule(
            f'"{self.text}" is not a length of time. Write a number and a unit, such as 50ms, 30s or 10m.{hint}'
        )


def _fail(text: str, why: str) -> NoReturn:
    if text.lower().startswith("adaptive"):
        raise InvalidRule(
            f'"{text}" is not a limit. Write limit: {{adaptive: concurrency}} in a rulebook, or use '
            "AdaptiveLimiter()."
        )
    raise InvalidRule(
        f'"{text}" is not a limit. Write AMOUNT/PERIOD, such as 10/minute or 10/30s, or N slots.'
        + (f" {why}" if why else "")
    )
