"""The answer that is given most, written at once: everybody passes, and nothing is to be said about it.

A gateway waits for this answer in every request that it serves, and making a message of it, field by field, is
most of what answering costs. So where each descriptor met at most one count, and passed, bytes are put together
here: what never changes of a limit is made once, by the messages themselves, and only numbers are written anew.

Whatever else there is to tell (a refusal, a shadow, a fallback, a delay, an override, other headers) is
not told here: then the answer is None, and told.py makes it.

Law (tests/service/envoy/test_response.py): what is written here is read as what told.py makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from headgate.algorithms.decision import ALLOWED, DELAY_US, REMAINING, RESET_AFTER_US, Decision, Outcome
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import SECOND, UNLIMITED
from headgate.enforcement.check_together import Together
from headgate.enforcement.rule_decision import Charged, Head
from headgate.service.envoy.messages import RateLimitResponse
from headgate.service.envoy.request import DescriptorCheck
from headgate.service.envoy.response import (
    MAX_CACHED_LIMITS,
    MAX_UINT32,
    OK,
    LimitDescription,
    OptionalDecisions,
    ResponseFormat,
    reset_us,
)

_FREE = RateLimitResponse(statuses=[{"code": OK}]).SerializeToString()
_ALL_PASS = RateLimitResponse(overall_code=OK).SerializeToString()
_NOTHING: Outcome = (True, 0, 0, 0, 0, 0, 0)
_double: Callable[[float], bytes] = Struct("<d").pack
_SMALL = [bytes([number]) for number in range(128)]


class _Lines:
    """What never changes of how a limit is told, as bytes."""

    __slots__ = ("called", "limit", "most", "name", "policy", "rule", "source", "timed", "windowed")

    def __init__(self, source: Any, rule: str, called: str) -> None:
        part = Decision(_NOTHING, source, "", 1)
        part.rule = self.called = called
        self.source = source
        self.windowed = source.limit if isinstance(source.limit, FixedWindow) else None
        face = LimitDescription(part)
        self.most, self.name, self.timed = face.most, face.name, face.timed
        requests, unit = face.rate
        current = {"requests_per_unit": requests, "unit": unit, "name": called}
        status = RateLimitResponse.DescriptorStatus(code=OK, current_limit=current)
        self.limit: bytes = status.SerializeToString()
        policy = {"key": "RateLimit-Policy", "value": face.policy}
        self.policy = RateLimitResponse(response_headers_to_add=[policy]).SerializeToString()
        told = RateLimitResponse()
        told.dynamic_metadata.update({"rule": rule})
        self.rule = told.dynamic_metadata.SerializeToString()


_lines: dict[int, _Lines] = {}

Row = tuple[_Lines | None, Outcome | None]  # no lines: no rule applied


def encode_passes(
    wording: ResponseFormat, asked: Sequence[DescriptorCheck], answers: OptionalDecisions
) -> bytes | None:
    """The answer's bytes, if there is nothing but passes to tell."""
    if not _usual(wording):
        return None
    rows: list[Row] = []
    for question, decision in zip(asked, answers, strict=True):
        if decision is None or decision.denied:
            return None
        # The decision's own, not its parts: making those costs as much as all of this.
        found = _row(question, decision.heads, decision.charges, wording)
        if found is None:
            return None
        rows.append((found[0], decision.answers[0] if found[0] else _NOTHING))
    return _written(rows)


class CachedRequest:
    """A request whose charges are known: where the answers to them are told."""

    def __init__(self, wording: ResponseFormat, asked: Sequence[DescriptorCheck], together: Together) -> None:
        self.wording: ResponseFormat = wording
        self.asked: Sequence[DescriptorCheck] = asked
        self.together: Together = together
        self._rows: list[tuple[_Lines | None, int]] | None = []
        for question, (call, places) in zip(asked, together.asked, strict=True):
            found = _row(question, call.heads, call.charges, wording)
            if found is None or together.meeting or not _usual(wording):
                self._rows = None
                return
            self._rows.append((found[0], places[0] if found[0] else -1))

    def encode_passes(self, answers: Sequence[Outcome]) -> bytes | None:
        """The answer's bytes, as above."""
        if self._rows is None:
            return None
        return _written([(lines, answers[place] if lines else _NOTHING) for lines, place in self._rows])


def _usual(wording: ResponseFormat) -> bool:
    return wording.form == "draft-11" and wording.names


def _row(
    question: DescriptorCheck, heads: Sequence[Head], charges: Sequence[Charged], wording: ResponseFormat
) -> tuple[_Lines | None] | None:
    """How the one count is told that a descriptor meets; None if there is more to tell."""
    if question.override or question.back or len(heads) > 1:
        return None
    if not heads:
        return (None,)
    (rule, aside), source = heads[0], charges[0][0]
    if aside is not None or source.limit is UNLIMITED:
        return None
    called = wording.called(rule) or ""
    lines = _lines.get(id(source))
    if lines is None or lines.source is not source or lines.called != called:
        if len(_lines) >= MAX_CACHED_LIMITS:
            _lines.clear()
        lines = _lines[id(source)] = _Lines(source, rule, called)
    return (lines,)


def _written(rows: Sequence[Row]) -> bytes | None:
    out = [_ALL_PASS]
    spoke: tuple[_Lines, Outcome] | None = None
    least = 0.0
    for lines, facts in rows:
        if lines is None:
            out.append(_FREE)
            continue
        # Outcome that are more than a tuple have something to tell: a fallback, a lockout, a limit of the key's
        # own.
        if type(facts) is not tuple or not facts[ALLOWED] or facts[DELAY_US]:
            return None
        out.append(_status(lines, facts))
        share = facts[REMAINING] / lines.most
        if spoke is None or share < least:
            spoke, least = (lines, facts), share
    if spoke is not None:
        _say(out, *spoke)
    return b"".join(out)


def _status(lines: _Lines, facts: Outcome) -> bytes:
    until_us = facts[RESET_AFTER_US]
    if not until_us and lines.windowed is not None:
        until_us = reset_us(facts, lines.windowed)
    seconds, rest_us = divmod(until_us, SECOND)
    until = b"\x08" + _varint(seconds) if seconds else b""
    if rest_us:
        until += b"\x10" + _varint(rest_us * 1000)
    left = facts[REMAINING]
    told = b"\x18" + _varint(left if left < MAX_UINT32 else MAX_UINT32) if left > 0 else b""
    status = lines.limit + told + b"\x22" + _SMALL[len(until)] + until
    return b"\x12" + _varint(len(status)) + status


def _say(out: list[bytes], lines: _Lines, facts: Outcome) -> None:
    """The headers and the metadata of the limit that speaks for the call."""
    until = f";t={-(-facts[RESET_AFTER_US] // SECOND)}" if lines.timed else ""
    value = f"{lines.name};r={max(0, min(facts[REMAINING], lines.most))}{until}".encode()
    head = b"\x0a\x09RateLimit\x12" + _varint(len(value)) + value
    metadata = lines.rule + b"\x0a\x16\x0a\x09remaining\x12\x09\x11" + _double(facts[REMAINING])
    out += (lines.policy, b"\x1a", _varint(len(head)), head, b"\x32", _varint(len(metadata)), metadata)


def _varint(number: int) -> bytes:
    if number < 1 << 7:
        return _SMALL[number]
    if number < 1 << 14:
        return bytes((number & 127 | 128, number >> 7))
    if number < 1 << 21:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128)) + _varint(number >> 21)
