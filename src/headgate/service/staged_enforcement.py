"""Staged enforcement: enforces a shadow rule for 1, 10, 50 and 100 % of its keys, and rolls back by itself.

Each stage is a published version, whose only change is the mode of the rule. A stage is held for a time that the
operator sets. If more than the bound of its enforced calls are refused meanwhile, the rulebook from before the
first stage is published again. If somebody else publishes meanwhile, the stages end, and nothing is changed.

One worker of all services does it at a time, under a lock in Redis, with or without a page open. That two might do
it after all changes nothing: every publication names the version that it follows.

The plan is saved before its first stage is published. So a worker that dies behind a publication, or gets no reply
to one, leaves no stage without a watcher: the next look finds the version in force, and knows it by its note.

Laws (tests/service/test_staged_enforcement.py): only a rule in shadow mode is enforced in stages; stages come in
order, each after its time; a stage that refuses too much is rolled back to the text from before; a version of
somebody else is never overwritten; one at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from headgate.errors import EngineUnavailable, HeadgateError, InvalidRule
from headgate.operations.edit_rule_mode import with_rule_mode
from headgate.rules import load
from headgate.rules.distribution.published_versions import VersionConflict
from headgate.rules.distribution.rulebook_version import one_line
from headgate.rules.find_rule import find_rule
from headgate.rules.rule import Rule
from headgate.service.admin import schema
from headgate.service.admin.find_handlers import AdminHandlers
from headgate.service.admin.request import AdminRequest
from headgate.telemetry.counts import Counts
from headgate.telemetry.decision_counts import DecisionCounts
from headgate.telemetry.shared_counts import SharedCounts

STAGES: Final = (1, 10, 50, 100)  # percent of the keys
TICK_S: Final = 1.0
MIN_HOLD_S: Final = 10  # counts of all processes arrive within two seconds: a shorter stage would hardly be judged
MAX_REASON_LENGTH: Final = 300
START_S: Final = 10.0  # a start that has published nothing after so long is done again
MIN_CALLS: Final = 20  # enforced calls, before a share of them says anything
_SECONDS_READ: Final = 110

RUNNING, DONE, ROLLED_BACK, STOPPED = "running", "done", "rolled back", "stopped"
ROLLED_BACK_BY: Final = "headgate"  # the author of such a version
_log = logging.getLogger("headgate.service")


class StagedPlan(NamedTuple):
    """A staged enforcement: what the operator asked for, and how far it is."""

    rule: str
    hold_s: float  # each stage
    max_refused: float  # the share of enforced calls
    author: str
    remote: str
    reason: str
    base: int  # the version from before
    version: int  # that of the current stage
    stage: int  # its index; -1 before the first is published
    since_s: float  # when the stage began
    state: str = RUNNING
    why: str = ""  # it ended so

    @property
    def percent(self) -> int:
        return STAGES[max(0, self.stage)]

    def note(self, stage: int) -> str:
        """Returns the note of the version that publishes a stage."""
        share = f"{STAGES[stage]} % of its keys"
        return f'stage {stage + 1} of {len(STAGES)}: "{self.rule}" is enforced for {share}'

    def end_note(self, why: str) -> str:
        """Returns the note of the version that ends the stages."""
        return f'the stages of "{self.rule}" end: {why}'


def can_be_staged(rule: Rule) -> bool:
    """Returns whether a rule is in shadow mode, and enforced for no key yet."""
    return rule.mode.shadow > 0 and rule.mode.enforce == 0


class PlanStore(Protocol):
    """Keeps the plan and the lock; on the engine's server, or in this process."""

    async def load(self) -> str | None: ...
    async def save(self, plan: str) -> None: ...
    async def lock(self, owner: str) -> bool: ...
    async def is_locked(self) -> bool: ...


class MemoryPlanStore:
    """Keeps the plan in this process, which is the only one."""

    def __init__(self) -> None:
        self._plan: str | None = None
        self._locked = False

    async def load(self) -> str | None:
        return self._plan

    async def save(self, plan: str) -> None:
        self._plan = plan

    async def lock(self, owner: str) -> bool:
        self._locked = True
        return True

    async def is_locked(self) -> bool:
        return self._locked


class StagedEnforcement:
    """Starts, shows and stops staged enforcement; `run` advances it."""

    def __init__(
        self,
        handlers: AdminHandlers,
        store: PlanStore,
        counts: Callable[[], Counts | SharedCounts],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._handlers, self._store, self._counts, self._now_s = handlers, store, counts, now_s
        self._owner = secrets.token_hex(8)
        self._task: asyncio.Task[None] | None = None

    async def plan(self) -> StagedPlan | None:
        """Returns the plan that runs or has ended last; None if there is none."""
        packed = await self._store.load()
        return None if packed is None else StagedPlan(*json.loads(packed))

    async def has_runner(self) -> bool:
        """Returns whether a service runs that advances stages."""
        return await self._store.is_locked()

    async def start(
        self, rule: str, hold_s: float, max_refused: float, author: str, remote: str, reason: str
    ) -> None:
        """Begins: enforces the rule, which is in shadow mode, for the first share of its keys."""
        reason = one_line("reason", reason, MAX_REASON_LENGTH)
        if not reason:
            raise InvalidRule("The reason is missing. Say why the rule is enforced, for the audit trail.")
        running = await self.plan()
        if running is not None and running.state == RUNNING:
            raise InvalidRule(f'Rule "{running.rule}" is being enforced in stages: one at a time.')
        if not await self.has_runner():
            raise InvalidRule("No service runs that could watch over the stages: start headgate serve.")
        if not 0 < max_refused < 1 or not MIN_HOLD_S <= hold_s <= 30 * 86_400:
            raise InvalidRule(
                f"A stage is held for {MIN_HOLD_S} s to 30 days, and its bound lies between 0 and 100 %."
            )
        current = await self._call_handler("rules", author, remote)
        book = await asyncio.to_thread(load.parse, current.text, format=current.format)
        if not can_be_staged(find_rule(book, rule)):
            raise InvalidRule(
                f'Rule "{rule}" is not in shadow mode: stages would enforce it for fewer keys than now, or for '
                "keys that nobody has watched. Write mode: shadow in it first."
            )
        base = current.version.version
        plan = StagedPlan(rule, hold_s, max_refused, author, remote, reason, base, base, -1, self._now_s())
        await self._save(plan)
        try:
            await self._save(await self._publish_stage(plan, 0))
        except EngineUnavailable:
            raise  # it may have been published: the runner finds out
        except HeadgateError as error:
            await self._save(plan._replace(state=STOPPED, why=str(error)))
            raise

    async def stop(self, rule: str, author: str, remote: str) -> None:
        """Ends the stages of a rule, and publishes the rulebook from before them."""
        plan = await self.plan()
        if plan is None or plan.state != RUNNING:
            raise InvalidRule("No rule is being enforced in stages.")
        if plan.rule != rule:
            raise InvalidRule(
                f'Rule "{rule}" is not being enforced in stages; "{plan.rule}" is. Nothing was stopped.'
            )
        overtaken = await self._is_overtaken(plan)
        if overtaken and (adopted := await self.plan()) is not None and adopted.state == RUNNING:
            plan, overtaken = adopted, await self._is_overtaken(adopted)
        if overtaken or not await self._roll_back(plan, author, remote, f"stopped by {author}", STOPPED):
            raise InvalidRule(
                "Somebody published meanwhile: the stages have ended, and the rulebook stays as it is."
            )

    def run(self) -> None:
        """Begins to advance stages, as soon as no other worker does."""
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            try:
                if await self._store.lock(self._owner):
                    await self.tick()
            except HeadgateError as error:
                _log.debug("staged enforcement waits: %s", error)
            await asyncio.sleep(TICK_S)

    async def tick(self) -> None:
        """Advances the plan by what is due now."""
        plan = await self.plan()
        if plan is None or plan.state != RUNNING:
            return
        if await self._is_overtaken(plan):
            return
        elapsed_s = self._now_s() - plan.since_s
        if plan.stage < 0:
            if elapsed_s >= START_S:
                await self._save(await self._publish_stage(plan, 0))
            return
        counts = await asyncio.to_thread(self._stage_counts, plan.rule, elapsed_s)
        if counts.calls >= MIN_CALLS and counts.refused_share > plan.max_refused:
            why = f"at {plan.percent} % it refused {counts.refused_share:.1%} of {counts.calls:,} calls"
            await self._roll_back(plan, ROLLED_BACK_BY, plan.remote, why, ROLLED_BACK)
        elif elapsed_s >= plan.hold_s and plan.stage + 1 == len(STAGES):
            await self._save(plan._replace(state=DONE, why="all stages were held"))
        elif elapsed_s >= plan.hold_s:
            await self._save(await self._publish_stage(plan, plan.stage + 1))

    async def _is_overtaken(self, plan: StagedPlan) -> bool:
        """Ends the stages if the version in force is not theirs; takes up one of theirs that is not noted yet."""
        info = (await self._call_handler("rules", plan.author, plan.remote)).version
        if info is not None and info.version == plan.version:
            return False
        if info is not None and info.version == plan.version + 1:
            stage = plan.stage + 1
            if stage < len(STAGES) and (info.author, info.note) == (plan.author, plan.note(stage)):
                await self._save(plan._replace(stage=stage, version=info.version, since_s=self._now_s()))
                return True
            if info.author == ROLLED_BACK_BY and info.note.startswith(plan.end_note("")):
                why = info.note.removeprefix(plan.end_note(""))
                await self._save(plan._replace(state=ROLLED_BACK, why=why))
                return True
        whose = "no version" if info is None else f"version {info.version} of {info.author}"
        await self._save(plan._replace(state=STOPPED, why=f"{whose} came in between"))
        return True

    def _stage_counts(self, rule: str, elapsed_s: float) -> DecisionCounts:
        """Returns the counts since the stage began, without its first second: processes follow it meanwhile."""
        reader, total = self._counts(), DecisionCounts()
        if elapsed_s < 2:
            return total
        if elapsed_s <= _SECONDS_READ:
            rows = reader.series(rule, seconds=int(elapsed_s) - 1)
        else:
            rows = reader.series(rule, minutes=min(1500, int(elapsed_s // 60)))
        for row in rows:
            total = total.plus(row)
        return total

    async def _publish_stage(self, plan: StagedPlan, stage: int) -> StagedPlan:
        """Publishes a stage, and returns the plan that is at it."""
        current = await self._call_handler("rules", plan.author, plan.remote)
        text = with_rule_mode(current.text, current.format, plan.rule, STAGES[stage] * 100)
        published = await self._call_handler(
            "publish",
            plan.author,
            plan.remote,
            plan.reason,
            body=text.encode(),
            format=current.format,
            expected=plan.version,
            query={"note": plan.note(stage)},
        )
        return plan._replace(stage=stage, version=published.version.version, since_s=self._now_s())

    async def _roll_back(self, plan: StagedPlan, author: str, remote: str, why: str, state: str) -> bool:
        """Publishes the rulebook from before the stages; False if somebody else has published in between."""
        body = schema.RollbackRequest(plan.base, plan.end_note(why)[:500])
        try:
            await self._call_handler("rollback", author, remote, why, body=body, expected=plan.version)
        except VersionConflict:
            await self._is_overtaken(plan)
            return False
        await self._save(plan._replace(state=state, why=why))
        _log.warning("staged enforcement of %s: %s", plan.rule, why)
        return True

    async def _save(self, plan: StagedPlan) -> None:
        await self._store.save(json.dumps(plan))

    async def _call_handler(self, name: str, author: str, remote: str, reason: str = "", **parts: Any) -> Any:
        request = AdminRequest(
            {},
            parts.get("query", {}),
            parts.get("body"),
            parts.get("format", ""),
            parts.get("expected"),
            author,
            remote,
            reason,
        )
        return await self._handlers.handler(name)(request)

    async def close(self) -> None:
        """Ends; another worker goes on."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
