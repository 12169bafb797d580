"""Handlers for counters and for the overrides of single keys.

Overrides go through the limiter's engine, because its layers then drop what they cached for the key; a reset goes
to the engine itself, where a failure is reported, and then through the limiter's as well. A scan of all keys runs
in a thread, one at a time, and no longer than MAX_SCAN_S; what it has found by then is returned.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headgate.algorithms.limit import UNLIMITED
from headgate.algorithms.slots import Slots
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.overrides import join_limits, validate_override
from headgate.errors import CorruptState, InvalidCharge
from headgate.flow import arun
from headgate.operations import manual_calls
from headgate.operations.find_counters import (
    CounterRef,
    all_counters_of_key,
    check_counted_on_server,
    counters_of_key,
    counters_of_limits,
)
from headgate.operations.scan_counters import KeyScan, check_rule, report_usage, scan_keys
from headgate.rules.find_rule import find_rule, key_format
from headgate.rules.match import Matcher
from headgate.rules.rule import Rule
from headgate.service.admin import schema
from headgate.service.admin.audit_log import ChangeLog
from headgate.service.admin.request import AdminRequest, Conflict, KeyScanBusy, NotFound
from headgate.service.admin.unlayered_engines import UnlayeredEngines

DEFAULT_KEYS = 20  # rows of /keys, unless `top` is given
DEFAULT_OVERRIDES = 1000  # rows of overrides, unless `top` is given
MAX_SCAN_S = 30.0

Target = tuple[Rule, str, list[CounterRef]]


class CounterHandlers:
    """The handlers of keys, counters and overrides."""

    def __init__(self, limiter: AsyncRuleLimiter, clients: UnlayeredEngines, changes: ChangeLog) -> None:
        self._limiter, self._clients, self._changes = limiter, clients, changes
        self._scan_lock = asyncio.Lock()
        self._scan: KeyScan | None = None
        self._matcher: Matcher | None = None

    async def overrides(self, request: AdminRequest) -> schema.RuleOverrideList:
        rule, top = self._rule(request.path["rule"]), request.top(DEFAULT_OVERRIDES)
        overrides = [each async for each in self._limiter.overrides(rule.name).list(top + 1)]
        rows = [schema.KeyOverride(rule.name, key, text) for key, text in sorted(overrides[:top])]
        return schema.RuleOverrideList(rule.name, len(overrides) <= top, rows)

    async def override(self, request: AdminRequest) -> schema.KeyOverride:
        rule, key = self._rule(request.path["rule"]), request.path["key"]
        text = await self._limiter.overrides(rule.name).get(key)
        if text is None:
            raise NotFound(f"{key} has no limit of its own.")
        return schema.KeyOverride(rule.name, key, text)

    async def override_with_ttl(self, rule: str, key: str) -> tuple[str | None, float | None]:
        """Returns the override of a key, and in how many seconds it ends; None if never."""
        return await self._limiter.overrides(rule).get(key), await self._clients.override_expires_in(rule, key)

    async def set_override(self, request: AdminRequest) -> schema.KeyOverride:
        rule, body = self._rule(request.path["rule"]), request.body
        key, limits, _ = validate_override(request.path["key"], body.limits, body.ttl)
        overrides = self._limiter.overrides(rule.name)
        before, before_ttl = await self.override_with_ttl(rule.name, key)
        if not await overrides.set(key, body.limits, absent=body.absent, ttl=body.ttl):
            raise Conflict(f"{key} has a limit of its own already; it stays.")
        text = join_limits(limits)
        details = {"rule": rule.name, "key": key, "before": before, "after": text, "ttl": body.ttl}
        await self._record("override set", request, **details, before_ttl=before_ttl)
        return schema.KeyOverride(rule.name, key, text)

    async def unset_override(self, request: AdminRequest) -> schema.RemovedOverride:
        rule, key = self._rule(request.path["rule"]), request.path["key"]
        overrides = self._limiter.overrides(rule.name)
        before, before_ttl = await self.override_with_ttl(rule.name, key)
        if not await overrides.unset(key):
            raise NotFound(f"{key} has no limit of its own.")
        details = {"rule": rule.name, "key": key, "before": before, "before_ttl": before_ttl}
        await self._record("override unset", request, **details)
        return schema.RemovedOverride(rule.name, key, before)

    async def keys(self, request: AdminRequest) -> schema.KeyUsageReport:
        rule, top = request.query.get("rule") or None, request.top(DEFAULT_KEYS)
        if self._scan_lock.locked():
            raise KeyScanBusy("Another scan of the keys is running: one at a time.")
        async with self._scan_lock:
            timeout = asyncio.get_running_loop().call_later(MAX_SCAN_S, self.stop_scan)
            try:
                document = await asyncio.to_thread(self._scan_keys, rule, top)
            finally:
                timeout.cancel()
        return msgspec.convert(document, schema.KeyUsageReport)

    def _scan_keys(self, rule: str | None, top: int) -> dict[str, Any]:
        with self._clients.sync_engine() as engine:
            self._scan = scan_keys(engine, rule)
            book = self._limiter.rulebook
            usage = report_usage(engine, self._scan, book, rule, top)
        check_rule(usage, book, rule)
        return usage.document()

    def stop_scan(self) -> None:
        """Stops a running scan of the keys."""
        if self._scan is not None:
            self._scan.stopped = True

    async def peek(self, request: AdminRequest) -> schema.PeekResult:
        body = request.body
        if body.rule is None:
            by_rules = await self._limiter.peek(_attributes(body), body.cost)
            limits = [
                _verdict(verdict.rule or "", verdict)
                for verdict in (*by_rules.verdicts, *by_rules.shadow_verdicts)
            ]
            return schema.PeekResult(by_rules.allowed, by_rules.degraded, limits)
        rule, key, counts = self._target(body)
        cost = 1 if body.cost is None else body.cost
        decision = await arun(manual_calls.peek(self._clients.engine, key, counts, cost))
        return schema.PeekResult(
            decision.allowed, False, [_verdict(rule.name, verdict) for verdict in decision.verdicts]
        )

    async def reset(self, request: AdminRequest) -> schema.ResetResult:
        targets, left_out = self._targets(request.body, all_limits=True)
        forgotten = []
        for rule, key, counts in targets:
            used = await self._used_units(key, counts)
            names = await arun(manual_calls.reset(self._clients.engine, key, counts))
            await self._record("key reset", request, rule=rule.name, key=key, counts=",".join(names), used=used)
            if self._clients.is_remote:  # cached denials and prefetched units of this worker
                await arun(manual_calls.reset(self._limiter.engine, key, counts))
            forgotten.append(schema.DeletedCounters(rule.name, key, names))
        return schema.ResetResult(forgotten, left_out)

    async def pause(self, request: AdminRequest) -> schema.KeyPause:
        body = request.body
        rule = self._rule(body.rule)
        left = await self._limiter.pause(rule.name, body.key, body.seconds)
        await self._record("key paused", request, rule=rule.name, key=body.key, seconds=left)
        return schema.KeyPause(rule.name, body.key, left)

    async def spend_unit(self, rule_name: str, key: str) -> None:
        """Takes a unit of each limit of a key that has one left: a block lets not even one call pass."""
        _, key, counts = self._target(schema.ResetRequest(rule=rule_name, key=key), all_limits=True)
        for counter in counts:
            if not isinstance(counter.limit, Slots):
                await arun(manual_calls.take(self._clients.engine, key, [counter], 1))

    async def charge_again(self, request: AdminRequest) -> schema.PeekResult:
        """Charges what a reset deleted, as far as the limits still have room: "login=3,login#1=7" in the path."""
        rule, key, counts = self._target(request.body, all_limits=True)
        used = dict(part.partition("=")[::2] for part in request.path["used"].split(",") if part)
        verdicts = []
        for counter in counts:
            units = int(used.get(counter.name, 0))
            if units and not isinstance(counter.limit, Slots):
                decision = await arun(manual_calls.take(self._clients.engine, key, [counter], units))
                verdicts += [_verdict(rule.name, verdict) for verdict in decision.verdicts]
        await self._record("key charged again", request, rule=rule.name, key=key, used=request.path["used"])
        return schema.PeekResult(all(verdict.allowed for verdict in verdicts), False, verdicts)

    async def refund(self, request: AdminRequest) -> schema.RefundResult:
        units = request.body.cost
        targets, left_out = self._targets(request.body, all_limits=False)
        rooms = []
        for rule, key, counts in targets:
            refunds = await arun(manual_calls.refund(self._clients.engine, key, counts, units))
            await self._record("units refunded", request, rule=rule.name, key=key, units=units)
            rooms += [
                schema.RemainingUnits(
                    rule.name, key, name, after.limit.text, before.remaining, after.remaining, after.reset_after
                )
                for name, before, after in refunds
            ]
        return schema.RefundResult(rooms, left_out)

    async def _used_units(self, key: str, counts: list[CounterRef]) -> str:
        """Returns the units that each counter holds, such as "login=3,login#1=7": what undoing a reset charges."""
        rates = [each for each in counts if not isinstance(each.limit, Slots)]
        if not rates:
            return ""
        try:
            decision = await arun(manual_calls.take(self._clients.engine, key, rates, 0, commit=False))
        except CorruptState:  # a reset is what mends it
            return ""
        return ",".join(
            f"{counter.name}={verdict.limit.units_in_use(verdict[:7])}"
            for counter, verdict in zip(rates, decision.verdicts, strict=False)
        )

    async def _record(self, event: str, request: AdminRequest, **details: str | int | float | None) -> None:
        if request.undoes:
            details["undoes"] = request.undoes
        await self._changes.record(event, request.author, request.remote, request.reason, **details)

    def _targets(self, body: Any, *, all_limits: bool) -> tuple[list[Target], list[str]]:
        """Returns rules, keys and counters; and the rules that apply, but are not counted in the engine."""
        if body.rule is not None:
            return [self._target(body, all_limits=all_limits)], []
        targets: list[Target] = []
        left_out: list[str] = []
        for match in self._match(_attributes(body)):
            rule, key, limits = match.rule, match.key, match.limits
            if match.denial_reason is not None or not limits:
                continue
            if self._counts_elsewhere(rule):
                left_out.append(rule.name)
            else:
                targets.append(
                    (rule, key, all_counters_of_key(rule, key) if all_limits else counters_of_limits(rule, limits))
                )
        if not targets and not left_out:
            raise InvalidCharge("No rule counts a call of these attributes: there is nothing to do.")
        return targets, left_out

    def _target(self, body: Any, *, all_limits: bool = False) -> Target:
        rule = self._rule(body.rule)
        if body.key is None:
            raise InvalidCharge(f'The key is missing. With "rule", give "key": {key_format(rule)}.')
        if self._counts_elsewhere(rule):
            check_counted_on_server(rule)
        if all_limits:
            return rule, body.key, all_counters_of_key(rule, body.key)
        attributes = {name: "" if value is None else value for name, value in (body.attributes or {}).items()}
        return rule, body.key, counters_of_key(rule, body.key, attributes, _attribute_hint)

    def _counts_elsewhere(self, rule: Rule) -> bool:
        """Returns whether its counters are in another engine, or are limit shares."""
        return rule.where == "split" or (self._clients.is_remote and rule.where != "cluster")

    def _match(self, attributes: dict[str, Any]) -> Any:
        book = self._limiter.rulebook
        if self._matcher is None or self._matcher.book is not book:
            self._matcher = Matcher(book)
        return self._matcher.match(attributes)

    def _rule(self, name: str) -> Rule:
        return find_rule(self._limiter.rulebook, name)


def _verdict(rule: str, verdict: Any) -> schema.AdminVerdict:
    return schema.AdminVerdict(
        rule,
        verdict.key,
        None if verdict.limit is UNLIMITED else verdict.limit.text,
        verdict.allowed,
        verdict.remaining,
        verdict.retry_after,
        verdict.reset_after,
        verdict.delay,
        verdict.shadow_kind,
    )


def _attributes(body: Any) -> dict[str, Any]:
    if body.key is not None:
        raise InvalidCharge('The rule is missing. With "key", give "rule".')
    if body.attributes is None:
        raise InvalidCharge('The counts are not named. Give "attributes" of a call, or "rule" and "key".')
    attributes: dict[str, Any] = body.attributes
    return attributes


def _attribute_hint(name: str) -> str:
    return f'"attributes": {{"{name}": ...}}, null if there is none'
