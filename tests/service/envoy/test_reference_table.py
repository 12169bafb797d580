"""A file of the reference service, requests in a row, and what it answers to each; over a real port.

The answers are derived from its source (envoyproxy/ratelimit: GetLimit in src/config/config_impl.go,
shouldRateLimitWorker in src/service/ratelimit.go, GetResponseDescriptorStatus in src/limiter/base_limiter.go). Two
differences are meant: a refused request is charged to nobody, and a peek asks whether anything is left.
"""

from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from headgate.rules import load
from tests.servers import RedisServer
from tests.service.envoy.envoy_harness import OK, OVER_LIMIT, EnvoyClient, Unit, descriptor, serve_envoy

Entry = tuple[str, str]
DescriptorEntries = list[Entry]


class RlsStatus(NamedTuple):
    """The expected status of one descriptor. Without a limit: no rule was met."""

    code: int
    limit: int | None = None
    left: int = 0


class RlsStep(NamedTuple):
    """A request and its answer: the overall code, and a status for each descriptor."""

    descriptors: list[DescriptorEntries]
    code: int
    statuses: list[RlsStatus]


def free() -> RlsStatus:
    return RlsStatus(OK)


def one(*entries: Entry, code: int = OK, limit: int | None = None, left: int = 0) -> RlsStep:
    """A request of one descriptor."""
    return RlsStep([list(entries)], code, [RlsStatus(code, limit, left)])


NOTHING_LEFT = {"code": OVER_LIMIT, "limit": 2}
A, B, C = [("pool", "a")], [("pool", "b")], [("pool", "c")]

EXAMPLE = """
domain: rl
descriptors:
  - key: foo
    rate_limit: {unit: year, requests_per_unit: 2}
"""
NESTED = """
domain: rl
descriptors:
  - key: unspec
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: a
    descriptors:
      - key: b
        rate_limit: {unit: year, requests_per_unit: 3}
  - key: b
    descriptors:
      - key: a
        rate_limit: {unit: year, requests_per_unit: 4}
  - key: UNSPEC
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: x-id
    rate_limit: {unit: year, requests_per_unit: 6}
  - key: x_id
    rate_limit: {unit: year, requests_per_unit: 7}
"""
REPEATED = """
domain: rl
descriptors:
  - key: files
    value: a
    rate_limit: {unit: year, requests_per_unit: 2}
    descriptors:
      - key: files
        rate_limit: {unit: year, requests_per_unit: 3}
      - key: files
        value: b*
        share_threshold: true
        rate_limit: {unit: year, requests_per_unit: 4}
"""
EMPTY = """
domain: rl
descriptors:
  - key: any
    value: "*"
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: any
    rate_limit: {unit: year, requests_per_unit: 9}
  - key: some
    value: x*
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: some
    value: "y"
    rate_limit: {unit: year, requests_per_unit: 4}
  - key: some
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: outer
    descriptors:
      - key: inner
        rate_limit: {unit: year, requests_per_unit: 6}
"""
QUOTAS = """
domain: rl
descriptors:
  - key: pool
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: quiet
    quota_mode: true
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
"""
ZERO = """
domain: rl
descriptors:
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 0}
"""

TABLE: dict[str, tuple[str, list[RlsStep]]] = {
    "an empty value is a value": (
        EXAMPLE,
        [
            one(("foo", ""), limit=2, left=1),
            one(("foo", "x"), limit=2, left=1),
            one(("foo", ""), limit=2, left=0),
            one(("foo", ""), **NOTHING_LEFT),
            one(("foo", "x"), limit=2, left=0),
        ],
    ),
    "an empty value meets wildcards and keys without a value": (
        EMPTY,
        [
            one(("any", ""), limit=2, left=1),
            one(("any", "z"), limit=2, left=1),
            one(("any", ""), limit=2, left=0),
            one(("some", ""), limit=5, left=4),
            one(("some", "x"), limit=3, left=2),
            one(("some", "y"), limit=4, left=3),
            one(("outer", ""), ("inner", ""), limit=6, left=5),
            one(("outer", ""), ("inner", "i"), limit=6, left=5),
            one(("outer", ""), ("inner", ""), limit=6, left=4),
            one(("outer", "")),
        ],
    ),
    "all keys of a descriptor count, in their order and in their case": (
        NESTED,
        [
            one(("unspec", "a"), limit=2, left=1),
            one(("unspec", "a"), ("zzz", "1")),
            one(("zzz", "1"), ("unspec", "a")),
            one(("unspec", "a"), ("unspec", "a")),
            one(("UNSPEC", "a"), limit=5, left=4),
            one(("Unspec", "a")),
            one(("a", "1"), ("b", "1"), limit=3, left=2),
            one(("b", "1"), ("a", "1"), limit=4, left=3),
            one(("a", "1")),
            one(("a", "1"), ("b", "1"), ("c", "1")),
            one(("x-id", "1"), limit=6, left=5),
            one(("x_id", "1"), limit=7, left=6),
            one(("X_ID", "1")),
            one(("unspec", "a"), limit=2, left=0),
        ],
    ),
    "a key may come twice on a path": (
        REPEATED,
        [
            one(("files", "a"), limit=2, left=1),
            one(("files", "a"), ("files", "a"), limit=3, left=2),
            one(("files", "a"), ("files", "c"), limit=3, left=2),
            one(("files", "a"), ("files", "b1"), limit=4, left=3),
            one(("files", "a"), ("files", "b2"), limit=4, left=2),
            one(("files", "b"), ("files", "a")),
        ],
    ),
    "a quota is over when all quotas of the request are": (
        QUOTAS,
        [
            RlsStep([A, B], OK, [RlsStatus(OK, 1), RlsStatus(OK, 1)]),
            RlsStep([A, C], OK, [RlsStatus(OVER_LIMIT, 1), RlsStatus(OK, 1)]),
            RlsStep([A, B, C], OVER_LIMIT, [RlsStatus(OVER_LIMIT, 1)] * 3),
            RlsStep([A], OVER_LIMIT, [RlsStatus(OVER_LIMIT, 1)]),
            RlsStep([A, [("none", "x")]], OVER_LIMIT, [RlsStatus(OVER_LIMIT, 1), free()]),
            RlsStep([A, [("quiet", "x")]], OK, [RlsStatus(OVER_LIMIT, 1), RlsStatus(OK, 1)]),
            RlsStep([A, [("quiet", "x")]], OK, [RlsStatus(OVER_LIMIT, 1), RlsStatus(OK, 1)]),
        ],
    ),
    "a quota beside a limit": (
        QUOTAS,
        [
            RlsStep([[("user", "u")], A, B], OK, [RlsStatus(OK, 3, 2), RlsStatus(OK, 1), RlsStatus(OK, 1)]),
            RlsStep(
                [[("user", "u")], A, C], OK, [RlsStatus(OK, 3, 1), RlsStatus(OVER_LIMIT, 1), RlsStatus(OK, 1)]
            ),
            one(("user", "u"), limit=3, left=0),
            RlsStep(
                [[("user", "u")], A, [("pool", "new")]],
                OVER_LIMIT,
                [RlsStatus(OVER_LIMIT, 3), RlsStatus(OVER_LIMIT, 1), RlsStatus(OK, 1)],
            ),
            one(("pool", "new"), limit=1, left=0),  # the refused request was not charged
            RlsStep([[("user", "v")], A, B], OVER_LIMIT, [RlsStatus(OK, 3, 3), *[RlsStatus(OVER_LIMIT, 1)] * 2]),
            one(("user", "v"), limit=3, left=2),  # neither was this one
        ],
    ),
    "no requests per unit": (
        ZERO,
        [
            one(("closed", "x"), code=OVER_LIMIT, limit=0),
            one(("closed", "x"), code=OVER_LIMIT, limit=0),
            RlsStep([[("closed", "x")], [("none", "x")]], OVER_LIMIT, [RlsStatus(OVER_LIMIT, 0), free()]),
        ],
    ),
    "the same descriptor twice": (
        EXAMPLE.replace("requests_per_unit: 2", "requests_per_unit: 5"),
        [
            RlsStep([[("foo", "x")]] * 2, OK, [RlsStatus(OK, 5, 4), RlsStatus(OK, 5, 3)]),
            RlsStep(
                [[("foo", "x")], [("foo", "z")], [("foo", "x")]], OK, [RlsStatus(OK, 5, n) for n in (2, 4, 1)]
            ),
        ],
    ),
}  # fmt: skip


def written(text: str, folder: Path) -> Path:
    file = folder / "ratelimit.yaml"
    file.write_text(text)
    return file


def seen(response: Any) -> tuple[int, list[RlsStatus]]:
    return response.overall_code, [
        RlsStatus(
            status.code,
            status.current_limit.requests_per_unit if status.HasField("current_limit") else None,
            status.limit_remaining,
        )
        for status in response.statuses
    ]


async def walked(envoy: EnvoyClient, steps: list[RlsStep]) -> None:
    for number, step in enumerate(steps):
        response = await envoy.should_rate_limit(
            *(descriptor(*entries) for entries in step.descriptors), domain="rl"
        )
        assert seen(response) == (step.code, step.statuses), f"step {number}: {step.descriptors}"


@pytest.mark.parametrize("name", TABLE)
async def test_answers(name: str, tmp_path: Path) -> None:
    text, steps = TABLE[name]
    async with serve_envoy(written(text, tmp_path)) as envoy:
        await walked(envoy, steps)


@pytest.mark.parametrize("name", TABLE)
async def test_answers_on_redis(name: str, tmp_path: Path, redis_server: RedisServer) -> None:
    text, steps = TABLE[name]
    async with serve_envoy(written(text, tmp_path), redis_server.url) as envoy:
        await walked(envoy, steps)


async def test_a_repeated_request_gets_the_same_response(tmp_path: Path) -> None:
    """Requests that were cached are not parsed again; so all of them are sent three times."""
    twice = [descriptor(("foo", "x")), descriptor(("foo", "x"))]
    text = EXAMPLE.replace("requests_per_unit: 2", "requests_per_unit: 9")
    async with serve_envoy(written(text, tmp_path)) as envoy:
        responses = [await envoy.should_rate_limit(*twice, domain="rl") for _ in range(4)]
    left = [[status.limit_remaining for status in response.statuses] for response in responses]
    assert left == [[8, 7], [6, 5], [4, 3], [2, 1]]


async def test_nothing_is_left_of_no_requests_for_a_peek_and_for_any_hits(tmp_path: Path) -> None:
    async with serve_envoy(written(ZERO, tmp_path)) as envoy:
        for hits in (0, 1, 2, 5, 0):
            response = await envoy.should_rate_limit(descriptor(("closed", "x"), hits=hits), domain="rl")
            assert seen(response) == (OVER_LIMIT, [RlsStatus(OVER_LIMIT, 0)]), hits
            assert response.statuses[0].current_limit.unit == Unit.YEAR
            assert response.statuses[0].duration_until_reset.seconds > 0
            assert not response.response_headers_to_add


async def test_a_count_that_was_never_charged_tells_when_its_window_ends(tmp_path: Path) -> None:
    text = EXAMPLE.replace("unit: year", "unit: hour")
    async with serve_envoy(written(text, tmp_path)) as envoy:
        envoy.clock.set_us(1_700_002_800_000_000 + 600_250_000)  # 600.25 s after an hour began
        for entry, hits in ((("foo", "x"), 0), (("foo", "x"), 0), (("foo", "x"), 3), (("foo", "y"), 1)):
            (status,) = (await envoy.should_rate_limit(descriptor(entry, hits=hits), domain="rl")).statuses
            until = status.duration_until_reset
            assert (until.seconds, until.nanos) == (2999, 750_000_000), (entry, hits)


@pytest.mark.parametrize(
    ("options", "name", "policy"),
    [
        ({}, "calm", '"calm";q=2;w=31536000'),
        ({"with_names": False}, "", '"2/365d fixed";q=2;w=31536000'),
        ({"with_headers": False}, "calm", None),
        ({"with_headers": False, "with_names": False}, "", None),
    ],
)
async def test_names_and_header_fields_can_be_switched_off(
    options: Any, name: str, policy: str | None, tmp_path: Path
) -> None:
    written(EXAMPLE.replace("requests_per_unit: 2", "requests_per_unit: 2, name: calm"), tmp_path)
    async with serve_envoy(tmp_path, **options) as envoy:
        for code in (OK, OK, OVER_LIMIT):
            response = await envoy.should_rate_limit(descriptor(("foo", "x")), domain="rl")
            assert (response.overall_code, response.statuses[0].current_limit.name) == (code, name)
            fields = {field.key: field.value for field in response.response_headers_to_add}
            assert fields.get("RateLimit-Policy") == policy
            assert ("Retry-After" in fields) == (policy is not None and code == OVER_LIMIT)
            assert response.dynamic_metadata.fields["rule"].string_value == "rl.calm", "which is for logs"


async def test_names_are_reported_as_configured(tmp_path: Path) -> None:
    limits = [("calm", "calm"), ("two words/and more", "odd"), (None, "plain")]
    text = "domain: rl\ndescriptors:\n"
    for name, key in limits:
        given = f", name: {name}" if name else ""
        text += f"  - key: {key}\n    rate_limit: {{unit: year, requests_per_unit: 5{given}}}\n"
    descriptors = [descriptor((key, "x")) for _, key in limits]
    written(text, tmp_path)
    for rules in (tmp_path, tmp_path / "ratelimit.yaml"):
        async with serve_envoy(rules) as envoy:
            for _ in range(3):
                response = await envoy.should_rate_limit(*descriptors, domain="rl")
                names = [status.current_limit.name for status in response.statuses]
                assert names == ["calm", "two words/and more", "plain"]


async def test_a_changed_rulebook_changes_the_response() -> None:
    rule = {"name": "calm", "key": "user", "missing": "skip", "limit": "9/day fixed"}
    async with serve_envoy({"rules": [rule]}) as envoy:
        for label in (None, "first", "second", None):
            envoy.limiter.replace(
                load.from_mapping({"rules": [rule if label is None else {**rule, "label": label}]})
            )
            for _ in range(2):
                (status,) = (await envoy.should_rate_limit(descriptor(("user", "ann")))).statuses
                assert status.current_limit.name == (label or "calm")


async def test_quotas_without_an_engine_are_not_decided(tmp_path: Path) -> None:
    descriptors = [descriptor(*A), descriptor(*B), descriptor(("user", "u"))]
    with RedisServer() as server:
        async with serve_envoy(written(QUOTAS, tmp_path), f"{server.url}?deadline=300ms") as envoy:
            assert (await envoy.should_rate_limit(*descriptors, domain="rl")).overall_code == OK
            server.kill()
            code, _ = await envoy.refused(*descriptors, domain="rl")
            assert code == grpc.StatusCode.UNAVAILABLE
