"""Envoy's quota service, called by a client that we did not write. Real Envoys are in test_two_envoys.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from envoy.service.rate_limit_quota.v3 import rlqs_pb2, rlqs_pb2_grpc  # type: ignore[import-untyped]

from headgate import ManualClock
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.envoy import rlqs
from tests.servers.envoy import Json
from tests.service.envoy.envoy_harness import serving_grpc

BOOK: Json = {
    "rules": [
        {"name": "all", "when": {"domain": "edge", "name": "all"}, "limit": "100/s burst 200"},
        {"name": "user", "when": {"domain": "edge"}, "key": "user", "missing": "skip", "limit": "10/s"},
        {"name": "free", "when": {"domain": "edge", "name": "free"}, "limit": "unlimited"},
        {"name": "quiet", "when": {"domain": "edge", "name": "quiet"}, "limit": "1/day", "mode": "shadow"},
        {
            "name": "shared",
            "when": {"domain": "edge", "name": "shared"},
            "limit": "100/s burst 200",
            "initial_share": 10,
        },
        {"name": "held", "when": {"domain": "edge", "name": "held"}, "limit": "3 slots"},
        {
            "name": "closed",
            "when": {"domain": "edge", "name": "closed"},
            "key": "who",
            "missing": "deny",
            "limit": "1/s",
        },
    ]
}
ALL = {"name": "all"}
ALLOW, DENY = 0, 1
LIVE = 10  # seconds in which a part has run out, at reports every 5


class RlqsHarness:
    """A service in this process, whose time the test turns."""

    def __init__(self, limiter: AsyncRuleLimiter, clock: ManualClock, address: str) -> None:
        self.limiter, self.clock, self.address = limiter, clock, address
        self.channels: list[grpc.aio.Channel] = []

    def envoy(self, name: str | None = None) -> "RlqsStream":
        channel = grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.channels.append(channel)
        stub = rlqs_pb2_grpc.RateLimitQuotaServiceStub(channel)
        metadata = None if name is None else ((rlqs.HOLDER_HEADER, name),)
        return RlqsStream(stub.StreamRateLimitQuotas(metadata=metadata))


class RlqsStream:
    def __init__(self, call: Any) -> None:
        self.call = call
        self.reported = False
        self.pushed: list[Any] = []

    async def report(
        self, *usages: tuple[dict[str, str], int, int], domain: str = "edge", back: bool = False
    ) -> list[Any]:
        """Returns what is answered; every story here has an answer, if only to a last bucket that no rule is for.
        `back`: its Envoy had these buckets on a stream before.
        """
        message = rlqs_pb2.RateLimitQuotaUsageReports(domain=domain)
        for bucket, allowed, denied in (*usages, ({"name": "nobody"}, 1, 0)):
            usage = message.bucket_quota_usages.add()
            usage.bucket_id.bucket.update(bucket)
            usage.num_requests_allowed, usage.num_requests_denied = allowed, denied
            usage.time_elapsed.seconds = 5 if back or self.reported else 0
        self.reported = True
        await self.call.write(message)
        while True:
            actions = await self.pushed_actions()
            if dict(actions[-1].bucket_id.bucket) == {"name": "nobody"}:
                return actions[:-1]
            self.pushed += actions

    async def pushed_actions(self) -> list[Any]:
        """The next answer, whether it was asked for or pushed."""
        answer = await asyncio.wait_for(self.call.read(), 20)
        assert answer is not grpc.aio.EOF, await self.call.details()
        return list(answer.bucket_action)

    async def rate(self, bucket: dict[str, str], used: int, *, back: bool = False) -> float | None:
        """Units a second that it may pass by itself after this report; None if it is told nothing."""
        actions = await self.report((bucket, used, 0), back=back)
        return rate_of(actions[0]) if actions else None


def rate_of(action: Any) -> float:
    strategy = action.quota_assignment_action.rate_limit_strategy
    if strategy.WhichOneof("strategy") == "blanket_rule":
        return float("inf") if strategy.blanket_rule == ALLOW else 0.0
    bucket = strategy.token_bucket
    assert bucket.fill_interval.nanos == 0
    assert bucket.fill_interval.seconds >= 1
    return float(bucket.tokens_per_fill.value / bucket.fill_interval.seconds)


@asynccontextmanager
async def harness(
    engine: str = "memory://", book: Json = BOOK, *, listens: bool = False
) -> AsyncIterator[RlqsHarness]:
    clock = ManualClock()
    async with AsyncRuleLimiter(book, engine, clock=clock) as limiter:
        quotas = rlqs.QuotaService(limiter, now=lambda: clock.now_us() / 1_000_000)
        async with serving_grpc(rlqs.methods(quotas)) as address:
            made = RlqsHarness(limiter, clock, address)
            if not listens:
                clock.advance(LIVE + 1)  # as an engine does that has just begun
            try:
                yield made
            finally:
                for channel in made.channels:
                    await channel.close()


async def test_one_envoy_gets_the_whole_limit_in_the_messages_of_envoy() -> None:
    async with harness() as made:
        one = made.envoy()
        await one.report((ALL, 1, 0))
        made.clock.advance(5)
        (action,) = await one.report((ALL, 600, 100))
        assert dict(action.bucket_id.bucket) == ALL
        assignment = action.quota_assignment_action
        assert (assignment.assignment_time_to_live.seconds, assignment.assignment_time_to_live.nanos) == (7, 0)
        assert rate_of(action) == 100
        assert assignment.rate_limit_strategy.token_bucket.max_tokens == 200


async def test_two_share_by_demand_and_never_have_more_than_the_limit() -> None:
    async with harness() as made:
        one, other = made.envoy(), made.envoy()
        await one.rate(ALL, 1)
        rates: dict[str, float] = {}
        for tick in range(12):
            made.clock.advance(2.5)
            rates |= {"one": rate} if (rate := await one.rate(ALL, 1000)) is not None else {}
            made.clock.advance(2.5)
            wanted = 1000 if tick < 8 else 0
            rates |= {"other": rate} if (rate := await other.rate(ALL, wanted)) is not None else {}
            assert sum(rates.values()) <= 100
            if tick == 4:
                assert rates == {"one": 50, "other": 50}
        assert rates["one"] > 90, "what the other does not want is given back"


async def test_one_that_is_gone_leaves_its_part_when_that_has_run_out() -> None:
    async with harness() as made:
        one, other = made.envoy(), made.envoy()
        await one.rate(ALL, 1)
        made.clock.advance(5)
        assert await one.rate(ALL, 1000) == 100
        one.call.cancel()
        await asyncio.sleep(0.2)
        assert await other.rate(ALL, 1) == 0, "nothing is free"
        made.clock.advance(5)
        assert await other.rate(ALL, 1000) == 0
        made.clock.advance(6)
        (pushed,) = await other.pushed_actions()
        assert rate_of(pushed) > 0, "as soon as there is room"
        assert await other.rate(ALL, 1000) == 100


async def test_one_that_comes_back_keeps_what_it_has_until_that_has_run_out() -> None:
    async with harness() as made:
        one = made.envoy()
        await one.rate(ALL, 1)
        made.clock.advance(5)
        assert await one.rate(ALL, 1000) == 100
        one.call.cancel()
        await asyncio.sleep(0.2)
        again = made.envoy()
        assert await again.rate(ALL, 1000, back=True) is None, "DENY_ALL would take from it what it still has"
        made.clock.advance(5)
        assert await again.rate(ALL, 1000) is None
        made.clock.advance(3)
        assert await again.rate(ALL, 1000) == 0, "it has nothing any more"
        made.clock.advance(3)
        (pushed,) = await again.pushed_actions()
        assert rate_of(pushed) == 100


async def test_a_new_bucket_is_answered_while_the_engine_listens() -> None:
    async with harness(listens=True) as made:
        one = made.envoy()
        assert await one.rate(ALL, 1) == 0
        made.clock.advance(LIVE)
        (pushed,) = await one.pushed_actions()
        assert rate_of(pushed) > 0


async def test_a_rule_may_give_an_initial_share() -> None:
    shared = {"name": "shared"}
    async with harness() as made:
        one, other = made.envoy(), made.envoy()
        await one.rate(shared, 1)
        made.clock.advance(5)
        assert await one.rate(shared, 1000) == 100
        assert await other.rate(shared, 1) == 10
        made.clock.advance(5)
        assert await one.rate(shared, 1000) == 50
        assert await other.rate(shared, 1000) == 10, "until the other's larger grant has run out"
        made.clock.advance(5)
        await one.rate(shared, 1000)
        assert await other.rate(shared, 1000) == 50


async def test_an_initial_share_is_for_those_who_join_only() -> None:
    rule = {"name": "one", "when": {"name": "all"}, "limit": "1/hour burst 1", "initial_share": 100}
    async with harness(book={"rules": [rule]}) as made:
        one, other = made.envoy(), made.envoy()
        await one.rate(ALL, 1)
        rates = []
        for _ in range(4):
            made.clock.advance(5)
            await one.rate(ALL, 100)
            rates.append(await other.rate(ALL, 100))
        assert [rate is not None and rate > 0 for rate in rates] == [True, True, True, False]


async def test_who_is_still_without_a_part_later_is_refused() -> None:
    async with harness(
        book={"rules": [{"name": "one", "when": {"name": "all"}, "limit": "1/hour burst 1"}]}
    ) as made:
        one, other = made.envoy(), made.envoy()
        await one.rate(ALL, 1)
        rates = []
        for _ in range(4):
            made.clock.advance(5)
            await one.rate(ALL, 100)
            rates.append(await other.rate(ALL, 100))
        assert rates == [0, 0, 0, 0]


async def test_a_name_makes_it_the_same_holder_again() -> None:
    async with harness() as made:
        one = made.envoy("edge-1")
        await one.rate(ALL, 1)
        made.clock.advance(5)
        assert await one.rate(ALL, 1000) == 100
        one.call.cancel()
        await asyncio.sleep(0.2)
        again = made.envoy("edge-1")
        assert await again.rate(ALL, 1000) == 100

        impostor = made.envoy("edge-1")
        assert await impostor.rate(ALL, 1000) == 0, "two of one name are two"


@pytest.mark.parametrize(
    ("bucket", "rate"),
    [({"name": "free"}, float("inf")), ({"name": "quiet"}, float("inf")), ({"name": "closed"}, 0.0)],
)
async def test_what_is_not_divided(bucket: dict[str, str], rate: float) -> None:
    async with harness() as made:
        assert await made.envoy().rate(bucket, 1) == rate


async def test_slots_cannot_be_divided_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with harness() as made:
        one = made.envoy()
        assert await one.rate({"name": "held"}, 1) is None
        assert await one.rate({"name": "held"}, 1) is None
    assert sum('"held" cannot be divided' in line for line in caplog.messages) == 1


async def test_of_several_rules_the_smallest_counts() -> None:
    async with harness() as made:
        one = made.envoy()
        both = {"name": "all", "user": "ann"}
        await one.rate(both, 1)
        made.clock.advance(5)
        assert await one.rate(both, 1000) == 10


async def test_two_buckets_of_one_count_share_it() -> None:
    book = {"rules": [{"name": "all", "when": {"domain": "edge", "kind": True}, "limit": "100/s burst 200"}]}
    async with harness(book=book) as made:
        one = made.envoy()
        first, second = {"kind": "a"}, {"kind": "b"}
        rates: list[list[float]] = []
        for _ in range(5):
            actions = await one.report((first, 1000, 0), (second, 1000, 0))
            rates.append([rate_of(action) for action in actions])
            made.clock.advance(5)
        assert max(map(sum, rates)) <= 100
        assert rates[-1] == [50, 50]


async def test_an_idle_bucket_is_abandoned() -> None:
    async with harness() as made:
        one = made.envoy()
        await one.report((ALL, 1, 0))
        for _ in range(rlqs.MAX_IDLE_REPORTS - 1):
            made.clock.advance(5)
            await one.report((ALL, 0, 0))
        (action,) = await one.report((ALL, 0, 0))
        assert action.WhichOneof("bucket_action") == "abandon_action"
        assert await one.rate(ALL, 1) is not None, "it may come again"


@pytest.mark.parametrize(
    ("domain", "bucket", "words"),
    [("", ALL, "names the domain"), ("edge", {}, "A bucket has an id"), ("edge", {"k": "v" * 9000}, "at most")],
)
async def test_what_cannot_be_read_ends_the_stream_with_a_sentence(
    domain: str, bucket: dict[str, str], words: str
) -> None:
    async with harness() as made:
        one = made.envoy()
        message = rlqs_pb2.RateLimitQuotaUsageReports(domain=domain)
        message.bucket_quota_usages.add().bucket_id.bucket.update(bucket)
        await one.call.write(message)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await one.call.read()
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert words in str(error.value.details())


async def test_an_adaptive_rule_limits_no_quota_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Envoys do not report how calls end. Other rules of the bucket are divided as without it."""
    book = {"rules": [*BOOK["rules"], {"name": "app", "limit": {"adaptive": "concurrency", "between": [2, 2]}}]}
    async with harness(book=book) as made:
        one = made.envoy()
        assert await one.rate(ALL, 1) == 100
        assert await one.rate({"name": "other"}, 1) == float("inf")
    lines = [message for message in caplog.messages if "adaptive" in message]
    assert lines == [
        'the adaptive rule "app" stands still for quotas: Envoys report how many requests they let pass, not how '
        "long those took, so it limits none of them. Enforce it in the application."
    ]
