"""Operators' verbs on counts and on the limits of single keys.

Overrides go through the limiter's engine, because that forgets what it remembers of the key; a reset goes to the
engine itself, where it cannot fail unheard, and then through the limiter's as well. A walk through all keys is
done in a thread, one at a time, and no longer than LONGEST; what it has found by then is told.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headgate.algorithms.limit import UNLIMITED
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.overrides import checked, joined
from headgate.errors import InvalidCharge
from headgate.flow import arun
from headgate.operations import manual_calls
from headgate.operations.counter_lookup import Count, all_of_key, check_counted_there, of_key, of_limits
from headgate.operations.key_usage import Walk, check_rule, surveyed, walk
from headgate.rules.lookup import form_of, rule_of
from headgate.rules.match import Matcher
from headgate.rules.rule import Rule
from headgate.service.admin import schema
from headgate.service.admin.audit_log import log_change
from headgate.service.admin.engine_clients import EngineClients
from headgate.service.admin.request import AdminRequest, Conflict, KeyScanBusy, NotFound

DEFAULT_KEYS = 20  # keys that are told unless more are asked for
DEFAULT_OVERRIDES = 1000  # overrides
MAX_SCAN_S = 30.0  # seconds that a walk through the keys may take

Target = tuple[Rule, str, list[Count]]


class CounterHandlers:
    def __init__(self, limiter: AsyncRuleLimiter, lines: EngineClients) -> None:
        self._limiter, self._lines = limiter, lines
        self._walking = asyncio.Lock()
        self._walk: Walk | None = None
        self._matcher: Matcher | None = None

    async def overrides(self, asked: AdminRequest) -> schema.AllOwnLimits:
        rule, top = self._rule(asked.path["rule"]), asked.top(DEFAULT_OVERRIDES)
        found = [each async for each in self._limiter.overrides(rule.name).list(top + 1)]
        rows = [schema.OwnLimits(rule.name, key, text) for key, text in sorted(found[:top])]
        return schema.AllOwnLimits(rule.name, len(found) <= top, rows)

    async def override(self, asked: AdminRequest) -> schema.OwnLimits:
        rule, key = self._rule(asked.path["rule"]), asked.path["key"]
        text = await self._limiter.overrides(rule.name).get(key)
        if text is None:
            raise NotFound(f"{key} has no limit of its own.")
        return schema.OwnLimits(rule.name, key, text)

    async def set_override(self, asked: AdminRequest) -> schema.OwnLimits:
        rule, wanted = self._rule(asked.path["rule"]), asked.body
        key, limits, _ = checked(asked.path["key"], wanted.limits, wanted.ttl)
        own = self._limiter.overrides(rule.name)
        before = await own.get(key)
        if not await own.set(key, wanted.limits, absent=wanted.absent, ttl=wanted.ttl):
            raise Conflict(f"{key} has a limit of its own already; it stays.")
        text = joined(limits)
        told = {"rule": rule.name, "key": key, "before": before, "after": text, "ttl": wanted.ttl}
        log_change("override set", asked.author, asked.remote, **told)
        return schema.OwnLimits(rule.name, key, text)

    async def unset_override(self, asked: AdminRequest) -> schema.Unset:
        rule, key = self._rule(asked.path["rule"]), asked.path["key"]
        own = self._limiter.overrides(rule.name)
        before = await own.get(key)
        if not await own.unset(key):
            raise NotFound(f"{key} has no limit of its own.")
        log_change("override unset", asked.author, asked.remote, rule=rule.name, key=key, before=before)
        return schema.Unset(rule.name, key, before)

    async def keys(self, asked: AdminRequest) -> schema.Keys:
        rule, top = asked.query.get("rule") or None, asked.top(DEFAULT_KEYS)
        if self._walking.locked():
            raise KeyScanBusy("Somebody else is walking through the keys: one walk at a time.")
        async with self._walking:
            end = asyncio.get_running_loop().call_later(MAX_SCAN_S, self.stop)
            try:
                found = await asyncio.to_thread(self._walked, rule, top)
            finally:
                end.cancel()
        return msgspec.convert(found, schema.Keys)

    def _walked(self, rule: str | None, top: int) -> dict[str, Any]:
        with self._lines.blocking() as engine:
            self._walk = walk(engine, rule)
            book = self._limiter.rulebook
            found = surveyed(engine, self._walk, book, rule, top)
        check_rule(found, book, rule)
        return found.document()

    def stop(self) -> None:
        """End a walk that is under way."""
        if self._walk is not None:
            self._walk.stopped = True

    async def peek(self, asked: AdminRequest) -> schema.Peeked:
        wanted = asked.body
        if wanted.rule is None:
            ruled = await self._limiter.peek(_attributes(wanted), wanted.cost)
            limits = [_verdict(each.rule or "", each) for each in (*ruled.verdicts, *ruled.asides)]
            return schema.Peeked(ruled.allowed, ruled.degraded, limits)
        rule, key, counts = self._of_key(wanted)
        cost = 1 if wanted.cost is None else wanted.cost
        decision = await arun(manual_calls.peeking(self._lines.engine, key, counts, cost))
        return schema.Peeked(decision.allowed, False, [_verdict(rule.name, each) for each in decision.verdicts])

    async def reset(self, asked: AdminRequest) -> schema.WasReset:
        meant, left_out = self._meant(asked.body, every=True)
        forgotten = []
        for rule, key, counts in meant:
            names = await arun(manual_calls.resetting(self._lines.engine, key, counts))
            log_change("key reset", asked.author, asked.remote, rule=rule.name, key=key, counts=",".join(names))
            if self._lines.remote:  # what this worker remembers, or has prefetched
                await arun(manual_calls.resetting(self._limiter.engine, key, counts))
            forgotten.append(schema.Forgotten(rule.name, key, names))
        return schema.WasReset(forgotten, left_out)

    async def refund(self, asked: AdminRequest) -> schema.WasRefunded:
        units = asked.body.cost
        meant, left_out = self._meant(asked.body, every=False)
        rooms = []
        for rule, key, counts in meant:
            found = await arun(manual_calls.refunding(self._lines.engine, key, counts, units))
            log_change("units refunded", asked.author, asked.remote, rule=rule.name, key=key, units=units)
            rooms += [
                schema.Room(
                    rule.name, key, name, after.limit.text, before.remaining, after.remaining, after.reset_after
                )
                for name, before, after in found
            ]
        return schema.WasRefunded(rooms, left_out)

    def _meant(self, wanted: Any, *, every: bool) -> tuple[list[Target], list[str]]:
        """Rules, keys and counts; and the rules that apply, but whose counts are not the engine's."""
        if wanted.rule is not None:
            return [self._of_key(wanted, every=every)], []
        found: list[Target] = []
        left_out: list[str] = []
        for match in self._matching(_attributes(wanted)):
            rule, key, limits = match.rule, match.key, match.limits
            if match.denied is not None or not limits:
                continue
            if self._elsewhere(rule):
                left_out.append(rule.name)
            else:
                found.append((rule, key, all_of_key(rule, key) if every else of_limits(rule, limits)))
        if not found and not left_out:
            raise InvalidCharge("No rule counts a call of these attributes: there is nothing to do.")
        return found, left_out

    def _of_key(self, wanted: Any, *, every: bool = False) -> Target:
        rule = self._rule(wanted.rule)
        if wanted.key is None:
            raise InvalidCharge(f'Whose count? Beside "rule" give "key": {form_of(rule)}.')
        if self._elsewhere(rule):
            check_counted_there(rule)
        if every:
            return rule, wanted.key, all_of_key(rule, wanted.key)
        more = {name: "" if value is None else value for name, value in (wanted.attributes or {}).items()}
        return rule, wanted.key, of_key(rule, wanted.key, more, _how)

    def _elsewhere(self, rule: Rule) -> bool:
        """Whether its counts are another engine's, or parts of a limit."""
        return rule.where == "split" or (self._lines.remote and rule.where != "cluster")

    def _matching(self, attributes: dict[str, Any]) -> Any:
        book = self._limiter.rulebook
        if self._matcher is None or self._matcher.book is not book:
            self._matcher = Matcher(book)
        return self._matcher.match(attributes)

    def _rule(self, name: str) -> Rule:
        return rule_of(self._limiter.rulebook, name)


def _verdict(rule: str, verdict: Any) -> schema.Verdict:
    return schema.Verdict(
        rule,
        verdict.key,
        None if verdict.limit is UNLIMITED else verdict.limit.text,
        verdict.allowed,
        verdict.remaining,
        verdict.retry_after,
        verdict.reset_after,
        verdict.delay,
        verdict.aside,
    )


def _attributes(wanted: Any) -> dict[str, Any]:
    if wanted.key is not None:
        raise InvalidCharge('A key is of a rule: beside "key" give "rule".')
    if wanted.attributes is None:
        raise InvalidCharge('Whose counts? Give "attributes" of a call, or "rule" and "key".')
    found: dict[str, Any] = wanted.attributes
    return found


def _how(name: str) -> str:
    return f'"attributes": {{"{name}": ...}}, null if there is none'
