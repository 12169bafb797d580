"""Carries out the actions of operators for pages: each is one call of an admin handler.

So checks, log and audit trail are the same as over the API.

A block is the smallest limit that the rule can have, an exemption a very large one; both are overrides, because
those hold from the next call on, everywhere. Undoing a block also deletes the key's counters.

Laws of undoing (tests/dashboard/test_undo.py):
  - an override that is restored ends when it would have ended; one that has ended meanwhile is not restored;
  - a change is undone once, also if two operators press at once;
  - while the key has another override than the change left, the change is not undone: the newer one stays.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

from headgate.enforcement.override_checks import check_override
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.overrides import validate_override
from headgate.errors import EngineUnavailable, HeadgateError, InvalidCharge, InvalidRule
from headgate.operations.audit_trail import MAX_ENTRIES, UNDO_WITHIN_S, AuditEntry, Details
from headgate.rules.find_rule import find_rule
from headgate.service.admin import schema
from headgate.service.admin.audit_log import log_change, log_uncertain_change
from headgate.service.admin.find_handlers import AdminHandlers
from headgate.service.admin.request import AdminRequest
from headgate.service.dashboard.engine_availability import EngineAvailability, may_have_happened
from headgate.service.dashboard.number_format import span_text

BLOCK: Final = "block"
EXEMPT: Final = "exempt"
HOUR_S: Final = 3600
MIN_TTL_S: Final = 0.001  # of an override
MAX_TTL_S: Final = 366 * 86_400
MAX_LIMITS_CHARS: Final = 1000
TTL_TOLERANCE_S: Final = 60.0  # between the clocks of a server and a service
_limit_parts = re.compile(r"\s*\d+/(\S+)(.*)", re.S)
_SCALES: Final = {
    BLOCK: ("1/3650d{options}", "1/1000s{options}", "1/{period}{options}"),
    EXEMPT: ("1000000000/{period}{options}", "1000000/{period}{options}", "100000/{period}{options}"),
}


class Actor(NamedTuple):
    """The user who acts, the address, and the reason."""

    user: str
    remote: str
    reason: str
    undoes: str = ""  # the entry of the audit trail that the action undoes


class OperatorActions:
    """Changes of single keys, with their undoing."""

    def __init__(
        self, handlers: AdminHandlers, limiter: AsyncRuleLimiter, availability: EngineAvailability
    ) -> None:
        self._handlers, self._limiter, self._availability = handlers, limiter, availability

    async def call_handler(
        self,
        name: str,
        path: dict[str, str] | None = None,
        body: Any = None,
        actor: Actor | None = None,
        **parts: Any,
    ) -> Any:
        """Calls a handler of the admin API; a change, which has an actor, is logged if it may have been made."""
        self._availability.check()
        user, remote, reason, undoes = actor or Actor("", "", "")
        query = parts.pop("query", {})
        request = AdminRequest(
            path or {},
            query,
            body,
            parts.get("format", ""),
            parts.get("expected"),
            user,
            remote,
            reason,
            undoes,
        )
        try:
            return await self._handlers.handler(name)(request)
        except EngineUnavailable as error:
            self._availability.note(error)
            if actor is not None and may_have_happened(error):
                log_uncertain_change(name, user, remote, request.path)
            raise

    async def override(self, rule: str, key: str, limits: str, ttl_s: float | None, actor: Actor) -> None:
        """Sets the override of a key."""
        if len(limits) > MAX_LIMITS_CHARS:
            raise InvalidRule(
                f"The limit has {len(limits):,} characters; at most {MAX_LIMITS_CHARS:,} are possible."
            )
        if ttl_s is not None and not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
            raise InvalidRule(f"A limit of a key's own lasts {MIN_TTL_S:g} s to 366 days, not {ttl_s:g} s.")
        body = schema.OverrideRequest(limits, ttl_s)
        await self.call_handler("set_override", {"rule": rule, "key": key}, body, actor)

    async def unset_override(self, rule: str, key: str, actor: Actor) -> None:
        await self.call_handler("unset_override", {"rule": rule, "key": key}, None, actor)

    async def reset(self, rule: str, key: str, actor: Actor) -> None:
        """Deletes the counters of a key."""
        await self.call_handler("reset", None, schema.ResetRequest(rule=rule, key=key), actor)

    async def block(self, rule: str, key: str, ttl_s: float | None, actor: Actor) -> None:
        """Lets a key pass no more: sets the smallest limit, and takes its only unit."""
        await self.override(rule, key, self.scaled_limits(rule, key, BLOCK), ttl_s, actor)
        await self._handlers.counter_handlers.spend_unit(rule, key)

    async def exempt(self, rule: str, key: str, ttl_s: float | None, actor: Actor) -> None:
        """Lets a key pass always, in practice: sets a very large limit."""
        await self.override(rule, key, self.scaled_limits(rule, key, EXEMPT), ttl_s, actor)

    def scaled_limits(self, rule_name: str, key: str, kind: str) -> str:
        """Returns limits that block or exempt a key, of the algorithms that the rule has."""
        book = self._limiter.rulebook
        rule = find_rule(book, rule_name)
        limits = rule.limit.otherwise or next((case for _, case in rule.limit.cases if case), ())
        problem: HeadgateError | None = None
        texts: list[str] = []
        for limit in limits:
            match = _limit_parts.fullmatch(limit.text)
            if match is None:
                raise InvalidCharge(f'"{limit.text}" is held, not taken: no key of it can be blocked or exempted.')
            period, options = match[1], re.sub(r" (burst|queue|warmup) \S+", "", match[2])
            for scale in _SCALES[kind]:
                text = scale.format(period=period, options=_options(options, match[2], kind))
                try:
                    check_override(book, rule.name, key, validate_override(key, "; ".join([*texts, text]))[1])
                except HeadgateError as error:
                    problem = problem or error
                    continue
                texts.append(text)
                break
            else:
                raise problem or InvalidRule(f'Rule "{rule.name}" takes no override.')
        return "; ".join(texts)

    async def record_late_publication(self, version: schema.VersionInfo, base: int, remote: str) -> None:
        """Adds a publication to the audit trail that was made, but got no reply, unless it is there."""
        entries = await self._handlers.audit_trail.latest(MAX_ENTRIES)
        if any(
            each.event.startswith("rules ") and each.details.get("after") == version.version for each in entries
        ):
            return
        event = "rules published" if version.rolled_back_to is None else "rules rolled back"
        details: Details = {
            "before": base,
            "after": version.version,
            "to": version.rolled_back_to,
            "note": version.note,
            "reply": "none: it was found later",
        }
        log_change(event, version.author, remote, **details)
        await self._handlers.audit_trail.add(event, version.author, remote, details)

    async def undo(self, entry: AuditEntry, actor: Actor) -> None:
        """Undoes a change of a key, once: restores the override, or charges what a reset deleted."""
        if not can_undo(entry):
            raise InvalidCharge("This change cannot be undone here.")
        self._availability.check()
        trail = self._handlers.audit_trail
        if not await trail.claim_undo(entry.id):
            raise InvalidCharge("This change was undone already. A change can be undone once.")
        try:
            await self._undo(entry, actor._replace(undoes=entry.id))
        except HeadgateError as error:
            # A charge without a reply may have been made: it is not made again.
            uncertain = isinstance(error, EngineUnavailable) and may_have_happened(error)
            if entry.event != "key reset" or not uncertain:
                with suppress(HeadgateError):
                    await trail.release_undo(entry.id)
            raise

    async def _check_unchanged(self, entry: AuditEntry, rule: str, key: str) -> None:
        """Raises InvalidCharge if the override was changed after `entry`; one that has ended is no change."""
        current, expires_s = await self._handlers.counter_handlers.override_with_ttl(rule, key)
        if current is None:
            return
        lasts = "until it is undone" if expires_s is None else f"for another {span_text(expires_s)}"
        if current != entry.details.get("after"):
            raise InvalidCharge(
                f"The key's limit was changed since: it is {current} now, {lasts}. It stays. "
                "Undo the newer change first."
            )
        ttl = entry.details.get("ttl")
        left_s = ttl - (time.time() - entry.at_us / 1e6) if isinstance(ttl, int | float) else None
        if (left_s is None) != (expires_s is None) or abs((left_s or 0) - (expires_s or 0)) > TTL_TOLERANCE_S:
            raise InvalidCharge(
                f"The key's limit was set again since: {current} holds {lasts}. It stays. "
                "Undo the newer change first."
            )

    async def _undo(self, entry: AuditEntry, actor: Actor) -> None:
        rule, key = str(entry.details.get("rule", "")), str(entry.details.get("key", ""))
        before, before_ttl = entry.details.get("before"), entry.details.get("before_ttl")
        remaining_s = None
        if isinstance(before_ttl, int | float):
            remaining_s = before_ttl - (time.time() - entry.at_us / 1e6)
        if entry.event != "key reset":
            await self._check_unchanged(entry, rule, key)
        has_ended = remaining_s is not None and remaining_s < MIN_TTL_S
        match entry.event:
            case "override set" | "override unset" if isinstance(before, str) and not has_ended:
                await self.override(rule, key, before, remaining_s, actor)
            case "override unset":
                raise InvalidCharge(
                    f"Its earlier limit, {before}, has ended meanwhile: there is nothing to restore."
                )
            case "override set":
                await self.unset_override(rule, key, actor)
                if str(entry.details.get("after", "")).startswith("1/"):  # a block: its count would go on
                    await self.reset(rule, key, actor)
            case _:
                await self.call_handler(
                    "charge_again",
                    {"used": str(entry.details.get("used") or "")},
                    schema.ResetRequest(rule=rule, key=key),
                    actor,
                )


def can_undo(entry: AuditEntry) -> bool:
    """Returns whether a change of a key can be undone, unless it was undone already."""
    if time.time() - entry.at_us / 1e6 > UNDO_WITHIN_S:
        return False
    if entry.event == "key reset":
        return bool(entry.details.get("used"))
    return entry.event == "override set" or (
        entry.event == "override unset" and isinstance(entry.details.get("before"), str)
    )


def _options(kept: str, original: str, kind: str) -> str:
    """Returns the words behind a limit: without a burst, with the queue or warm-up that its algorithm needs."""
    words = re.search(r" (queue|warmup) \S+", original)
    if words is None:
        return kept
    return kept + (" queue 0" if words[1] == "queue" and kind == BLOCK else words[0])
