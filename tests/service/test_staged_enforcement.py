"""A shadow rule is enforced for ever more of its keys; what refuses too much is rolled back by itself."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.clock import ManualClock
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import EngineUnavailable, InvalidRule
from headgate.operations.edit_rule_mode import with_rule_mode
from headgate.rules import load
from headgate.service.admin.find_handlers import AdminHandlers
from headgate.service.settings import Settings
from headgate.service.staged_enforcement import MemoryPlanStore, StagedEnforcement, StagedPlan
from headgate.telemetry.counts import Counts

TEXT = """\
rules:
  - name: api   # of customers
    key: user
    missing: skip
    limit: 5/minute
    mode: shadow
"""
TOML = """
[[rules]]
name = "api"
limit = "5/s"
mode = "shadow" # yet
[[rules]]
name = "b"
limit = "1/s"
"""


class Evening:
    """A service in memory, whose time the test turns."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        self.counts = Counts(clock=self.clock)
        book = load.parse(TEXT)
        self.limiter = AsyncRuleLimiter(book, "memory://", clock=self.clock, observers=[self.counts])
        self.handlers = AdminHandlers(self.limiter, Settings(), self.counts)
        self.staged = StagedEnforcement(
            self.handlers, MemoryPlanStore(), lambda: self.counts, lambda: self.clock.now_us() / 1e6
        )

    async def start(self, max_refused: float = 0.5) -> None:
        await self.staged._store.lock("a service")
        await self.staged.start("api", 60, max_refused, "ann", "192.0.2.1", "it is time")

    async def calls(self, number: int, users: int) -> None:
        for index in range(number):
            await self.limiter.check({"user": f"user-{index % users}"})

    async def after(self, seconds: int) -> str:
        """Ticks once a second; how it stands."""
        for _ in range(seconds):
            self.clock.set_us(self.clock.now_us() + 1_000_000)
            await self.staged.tick()
        plan = await self.staged.plan()
        assert plan is not None
        return f"{plan.state} {plan.percent}"

    @property
    def enforced(self) -> int:
        return self.limiter.rulebook.rules[0].mode.enforce


@pytest.fixture
async def evening() -> AsyncIterator[Evening]:
    evening = Evening()
    yield evening
    await evening.handlers.close()
    await evening.limiter.close()


async def test_stages_come_in_order(evening: Evening) -> None:
    await evening.start()
    assert evening.enforced == 100
    for stage, enforced in (("running 10", 1000), ("running 50", 5000), ("running 100", 10_000)):
        await evening.calls(200, 200)
        assert (await evening.after(60), evening.enforced) == (stage, enforced)
    assert await evening.after(60) == "done 100"
    text = evening.limiter.rulebook.text or ""
    assert "# of customers" in text


async def test_too_many_refusals_roll_it_back(evening: Evening) -> None:
    await evening.start(max_refused=0.1)
    await evening.calls(200, 200)
    assert await evening.after(60) == "running 10"
    assert await evening.after(5) == "running 10"
    await evening.calls(4000, 100)  # forty each, of which five may pass
    assert await evening.after(3) == "rolled back 10"
    assert (evening.enforced, evening.limiter.rulebook.text) == (0, TEXT)
    plan = await evening.staged.plan()
    assert plan is not None
    assert plan.why.startswith("at 10 % it refused 8")
    events = [entry.event for entry in await evening.handlers.audit_trail.latest(5)]
    assert events == ["rules rolled back", "rules published", "rules published"]


async def test_a_version_of_somebody_else_stays(evening: Evening) -> None:
    await evening.start()
    other = TEXT.replace("5/minute", "6/minute")
    await evening.staged._call_handler("publish", "oleg", "", body=other.encode(), format="yaml")
    assert await evening.after(61) == "stopped 1"
    assert evening.limiter.rulebook.text == other


async def test_stopping_keeps_a_version_of_somebody_else(evening: Evening) -> None:
    await evening.start()
    other = TEXT.replace("5/minute", "6/minute")
    await evening.staged._call_handler("publish", "oleg", "", body=other.encode(), format="yaml")
    with pytest.raises(InvalidRule, match="the stages have ended"):
        await evening.staged.stop("api", "ann", "")
    assert evening.limiter.rulebook.text == other


async def test_a_version_that_comes_between_the_look_and_the_roll_back_stays(evening: Evening) -> None:
    await evening.start(max_refused=0.1)
    await evening.calls(200, 200)
    await evening.after(65)
    await evening.calls(4000, 100)
    other, loop = TEXT.replace("5/minute", "6/minute"), asyncio.get_running_loop()

    def publish_then_count() -> Counts:
        """Publishes as somebody else, after the version was checked and before it is rolled back."""
        publication = evening.staged._call_handler("publish", "oleg", "", body=other.encode(), format="yaml")
        asyncio.run_coroutine_threadsafe(publication, loop).result()
        return evening.counts

    evening.staged._counts = publish_then_count
    assert await evening.after(1) == "stopped 10"
    assert evening.limiter.rulebook.text == other
    plan = await evening.staged.plan()
    assert plan is not None
    assert "of oleg came in between" in plan.why


async def test_a_stage_whose_publication_got_no_reply_is_watched(evening: Evening) -> None:
    await evening.start(max_refused=0.1)
    save = evening.staged._save

    async def die(plan: StagedPlan) -> None:
        raise EngineUnavailable("no reply")

    evening.staged._save = die  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailable):
        await evening.after(60)
    evening.staged._save = save  # type: ignore[method-assign]
    assert evening.enforced == 1000
    assert await evening.after(5) == "running 10"
    await evening.calls(4000, 100)
    assert await evening.after(3) == "rolled back 10"


async def test_a_start_that_got_no_reply_is_watched_or_made_again(evening: Evening) -> None:
    publish = evening.staged._publish_stage
    for is_published in (True, False):

        async def lose_the_reply(plan: StagedPlan, stage: int, is_published: bool = is_published) -> StagedPlan:
            if is_published:
                await publish(plan, stage)
            raise EngineUnavailable("no reply")

        evening.staged._publish_stage = lose_the_reply  # type: ignore[method-assign]
        with pytest.raises(EngineUnavailable):
            await evening.start()
        evening.staged._publish_stage = publish  # type: ignore[method-assign]
        assert evening.enforced == (100 if is_published else 0)
        assert await evening.after(12) == "running 1"
        assert evening.enforced == 100
        await evening.staged.stop("api", "ann", "")


async def test_a_roll_back_that_got_no_reply_is_found(evening: Evening) -> None:
    await evening.start()
    await evening.staged.stop("api", "ann", "")  # so the next base has been rolled back to another
    await evening.start(max_refused=0.1)
    await evening.after(65)
    await evening.calls(4000, 100)
    save = evening.staged._save

    async def die(plan: StagedPlan) -> None:
        raise EngineUnavailable("no reply")

    evening.staged._save = die  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailable):
        await evening.after(3)
    evening.staged._save = save  # type: ignore[method-assign]
    assert await evening.after(1) == "rolled back 10"
    plan = await evening.staged.plan()
    assert plan is not None
    assert plan.why.startswith("at 10 % it refused")


@pytest.mark.parametrize("mode", ["enforce", "off", "{enforce: 10, shadow: 90}"])
async def test_only_a_rule_in_shadow_is_enforced_in_stages(evening: Evening, mode: str) -> None:
    text = TEXT.replace("mode: shadow", f"mode: {mode}")
    await evening.staged._call_handler("publish", "ann", "", body=text.encode(), format="yaml")
    with pytest.raises(InvalidRule, match="is not in shadow mode"):
        await evening.start()
    assert evening.limiter.rulebook.text == text
    assert await evening.staged.plan() is None


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [("", "reason is missing"), (" \n ", "reason is missing"), ("x" * 301, "at most 300"), ("a\nb", "one line")],
)
async def test_a_reason_is_needed(evening: Evening, reason: str, sentence: str) -> None:
    await evening.staged._store.lock("a service")
    with pytest.raises(InvalidRule, match=sentence):
        await evening.staged.start("api", 60, 0.1, "ann", "", reason)
    assert await evening.staged.plan() is None


async def test_stopping_names_the_rule(evening: Evening) -> None:
    await evening.start()
    with pytest.raises(InvalidRule, match='Rule "other" is not being enforced in stages; "api" is'):
        await evening.staged.stop("other", "ann", "")
    assert await evening.after(1) == "running 1"


async def test_one_at_a_time_and_only_with_a_service(evening: Evening) -> None:
    with pytest.raises(InvalidRule, match="No service runs"):
        await evening.staged.start("api", 60, 0.1, "ann", "", "r")
    await evening.start()
    with pytest.raises(InvalidRule, match="one at a time"):
        await evening.start()
    await evening.staged.stop("api", "ann", "")
    assert (evening.enforced, await evening.after(1)) == (0, "stopped 1")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("yaml", TEXT),
        ("yaml", TEXT.replace("    mode: shadow\n", "")),
        ("yaml", "rules:\n- limit: 5/s\n  name: 'api'\n- name: b\n  limit: 1/s\n  mode: off\n"),
        ("toml", TOML),
        ("json", '{"rules": [{"name": "api", "limit": "5/s"}]}'),
    ],
)
def test_only_the_mode_is_changed(kind: str, text: str) -> None:
    edited = load.parse(with_rule_mode(text, kind, "api", 5000), format=kind)
    assert edited.rule("api").mode.enforce == 5000  # type: ignore[union-attr]


def test_a_text_that_cannot_be_edited_is_left_alone() -> None:
    with pytest.raises(InvalidRule, match=r"Write mode: \{enforce: 1, shadow: 99\} in it"):
        with_rule_mode("rules: [{name: api, limit: 5/s}]", "yaml", "api", 100)
