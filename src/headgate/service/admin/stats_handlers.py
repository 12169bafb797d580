"""Handlers for counts by rule, hot keys, and the report on a shadow or a candidate.

With an engine on a server they read what all workers and gateways have shared there, in a thread; with memory://
the counts of this process.
"""

from __future__ import annotations

import asyncio
import re

import msgspec

from headgate.errors import InvalidRule
from headgate.operations.rule_report import DEFAULT_HOURS, DEFAULT_MAX_REFUSED, report_rule
from headgate.service.admin import schema
from headgate.service.admin.request import AdminRequest, NotFound
from headgate.service.settings import Settings
from headgate.telemetry.counts import Counts
from headgate.telemetry.shared_counts import SharedCounts

DEFAULT_MINUTES = 5
DEFAULT_KEYS = 10
MAX_KEYS = 200


class StatsHandlers:
    """The handlers of counts."""

    def __init__(self, counts: Counts, settings: Settings, is_remote: bool) -> None:
        self._counts, self._is_remote = counts, is_remote
        self._url, self._prefix = settings.engine, settings.prefix
        self._shared: SharedCounts | None = None

    def _reader(self) -> Counts | SharedCounts:
        if not self._is_remote:
            return self._counts
        if self._shared is None:
            self._shared = SharedCounts(self._url, prefix=self._prefix)
        return self._shared

    async def stats(self, request: AdminRequest) -> schema.StatsResult:
        seconds, minutes = _number(request, "seconds", 120), _number(request, "minutes", 1500)
        if seconds is not None and minutes is not None:
            raise InvalidRule("Send seconds or minutes, not both.")
        if seconds is None and minutes is None:
            minutes = DEFAULT_MINUTES
        counts = await asyncio.to_thread(self._reader().last, seconds=seconds, minutes=minutes)
        rule = request.query.get("rule")
        rows = [
            schema.RuleStats(name, **each.as_dict())
            for name, each in sorted(counts.items())
            if rule is None or name == rule
        ]
        return schema.StatsResult(seconds or (minutes or 0) * 60, rows)

    async def hot_keys(self, request: AdminRequest) -> schema.HotKeysResult:
        rule, kind, top = request.path["rule"], request.query.get("kind", "calls"), request.top(DEFAULT_KEYS)
        keys = await asyncio.to_thread(self._reader().hot_keys, rule, kind, min(top, MAX_KEYS), _mask(request))
        return schema.HotKeysResult(rule, kind, [schema.HotKeyRow(*each) for each in keys])

    async def rule_report(self, request: AdminRequest) -> schema.RuleReportResult:
        rule, hours = request.path["rule"], _number(request, "hours", 25) or DEFAULT_HOURS
        max_refused = _share(request)
        report = await asyncio.to_thread(report_rule, self._reader(), rule, hours, max_refused, _mask(request))
        if not report.rows:
            raise NotFound(f'"{rule}" was not called in this time.')
        return msgspec.convert(report.document(), schema.RuleReportResult)

    def close(self) -> None:
        """Closes the connection to the shared counts."""
        if self._shared is not None:
            self._shared.close()


def _number(request: AdminRequest, name: str, most: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= most:
        raise InvalidRule(f"{name} is a whole number from 1 to {most}, not {text[:20]!r}.")
    return int(text)


def _share(request: AdminRequest) -> float:
    text = request.query.get("max_refused")
    if text is None:
        return DEFAULT_MAX_REFUSED
    if not re.fullmatch(r"0?\.[0-9]{1,12}|[01](\.0*)?", text):
        raise InvalidRule(f"max_refused is a share from 0 to 1, such as 0.001; not {text[:20]!r}.")
    return float(text)


def _mask(request: AdminRequest) -> bool:
    text = request.query.get("mask", "false")
    if text not in ("true", "false"):
        raise InvalidRule(f"mask is true or false, not {text[:20]!r}.")
    return text == "true"
