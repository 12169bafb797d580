"""Questions as bytes: what nginx sends for charges is what Python sends for them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import Receipt
from headgate.algorithms.lockout import Lockout
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.redis import take_all
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.script_assembly import algorithm_script, mixed_script
from tests.nginx.engines.redis.redis_harness import NginxRedisEngine, RedisDriverNginx

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("10/s", {}),
    "too": ("20/minute burst 3", {}),
    "other": ("5/minute fixed", {}),
    "log": ("7/hour log", {}),
    "shadow": ("2/day", {"is_shadow": True}),
    "locked": ("3/s sliding", {"lockout": (5, 60_000_000, 600_000_000)}),
    "own": ("4/minute queue 3", {"overrides": True}),
    "all: %": ("6/s smooth", {"is_shadow": True, "lockout": (1, 2_000_000, 3_000_000), "overrides": True}),
    "held": ("9/s burst 4", {"pausable": True}),
    "held back": ("6/minute fixed", {"lockout": (1, 2_000_000, 3_000_000), "pausable": True}),
}
KEYS = st.one_of(st.sampled_from(["ada", "bob"]), st.text(max_size=6), st.just("x" * 300))
COSTS = st.one_of(st.integers(0, 5), st.sampled_from([10**14, 2**53, 2**53 + 2, 2**70]))
CHARGES = st.lists(st.tuples(st.sampled_from(sorted(RULES)), KEYS, COSTS), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def engine(gate: RedisDriverNginx) -> NginxRedisEngine:
    limits = {name: text for name, (text, _) in RULES.items()}
    return gate.engine("redis://h", limits, {name: terms for name, (_, terms) in RULES.items()})


@pytest.fixture(scope="module")
def questions(engine: NginxRedisEngine) -> dict[str, RequestBuilder]:
    builders = {}
    for name, (_, rule_options) in RULES.items():
        given: dict[str, Any] = dict(rule_options)
        if "lockout" in given:
            given["lockout"] = Lockout(*given["lockout"])
        if given.pop("pausable", False):
            given["pauses"] = ((engine.limits[name].algorithm, name),)
        options = ChargeOptions(name, **given)
        builders[name] = RequestBuilder(engine.limits[name], name, "hg", options)
    return builders


@given(charges=CHARGES, commit=st.sampled_from([0, 1, 2]))
def test_together(
    engine: NginxRedisEngine, questions: dict[str, RequestBuilder], charges: Any, commit: int
) -> None:
    charged = [(questions[name], key, cost) for name, key, cost in charges]
    request = take_all.joint_request(charged, None, 0, commit)
    assert request.script is not None
    plain = {name for name, _, _ in charges} <= {"plain", "too"} or charges[0][0] in ("other", "log")
    alike = commit == 1 and plain and len({each.limit.algorithm for each, _, _ in charged}) == 1
    model = charged[0][0].limit.algorithm
    script = (
        algorithm_script("take_together", model)
        if alike
        else mixed_script("take_all", {m for q, _, _ in charged for m in q.models})
    )
    assert request.script.sha == script.sha
    answer = engine.do("together", charges=engine.charges(*charges), sha=script.sha, commit=commit, alike=alike)
    assert bytes.fromhex(answer) == request.packed


@given(charges=st.lists(st.tuples(st.sampled_from(["plain", "too"]), KEYS, COSTS), min_size=1, max_size=6))
def test_together_where_all_are_alike(
    engine: NginxRedisEngine, questions: dict[str, RequestBuilder], charges: Any
) -> None:
    charged = [(questions[name], key, cost) for name, key, cost in charges]
    request = take_all.joint_request(charged, None, 0)
    script = algorithm_script("take_together", "token_bucket")
    answer = engine.do("together", charges=engine.charges(*charges), sha=script.sha, commit=1, alike=True)
    assert request.script is script
    assert bytes.fromhex(answer) == request.packed


@given(name=st.sampled_from(["plain", "other", "log", "shadow"]), key=KEYS, cost=COSTS)
def test_a_take(
    engine: NginxRedisEngine, questions: dict[str, RequestBuilder], name: str, key: str, cost: int
) -> None:
    packed = bytes.fromhex(engine.about("take", (name, key, cost)))
    request = questions[name].decide(key, cost, None, 0).packed
    if cost != 1:  # Python says beside a cost that it has no patience
        count, _, rest = request.partition(b"\r\n")
        request = b"*%d\r\n%b" % (int(count[1:]) - 1, rest.removesuffix(b"$2\r\n-1\r\n"))
    assert packed == request


@given(
    name=st.sampled_from(["plain", "other", "log", "held"]),
    key=KEYS,
    cost=st.integers(1, 9),
    at_us=st.integers(0, 2**52),
)
def test_a_refund(
    engine: NginxRedisEngine, questions: dict[str, RequestBuilder], name: str, key: str, cost: int, at_us: int
) -> None:
    outcome = [1, 3, 0, 70, 80, at_us, at_us + 5]
    packed = engine.about("packed_refund", (name, key, cost), outcome=outcome)
    receipt = Receipt(cost, at_us, 70, 80, at_us + 5)
    assert bytes.fromhex(packed) == questions[name].refund(key, cost, receipt, False, 0).packed
