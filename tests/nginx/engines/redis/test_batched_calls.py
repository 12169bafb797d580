"""Calls that travel together and look at nothing but counts: one run of one script decides them all."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.engines.redis import keys
from tests.nginx.engines.redis.redis_harness import NginxRedisEngine, RedisDriverNginx
from tests.servers import RedisServer

MANY = 120  # calls at once, in one request


def at_once(engine: NginxRedisEngine, *calls: list[tuple[str, str, int]]) -> list[Any]:
    asks = [engine.charges(*call) for call in calls]
    return list(engine.do("decide_each", asks=asks, commit=1))


def passed(reply: Any) -> bool:
    return all(outcome[0] == 1 for outcome in reply["answers"])


def runs(server: RedisServer) -> int:
    stats = server.info("commandstats")
    calls = [stats.get(f"cmdstat_{name}", "calls=0,") for name in ("eval", "evalsha")]
    return sum(int(each.removeprefix("calls=").partition(",")[0]) for each in calls)


def test_all_or_none_and_exactly(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    engine = gate.engine(redis_server.url, {"large": "400/hour", "small": "30/hour", "user": "4/hour"})
    before = runs(redis_server)

    def calls(first: int) -> list[Any]:
        users = [f"u{first + i}" for i in range(MANY)]
        return at_once(engine, *([("large", "", 1), ("small", "i", 1), ("user", user, 1)] for user in users))

    with ThreadPoolExecutor(4) as pool:
        replies = [each for batch in pool.map(calls, range(0, 4 * MANY, MANY)) for each in batch]
    assert sum(map(passed, replies)) == 30
    assert sorted(each["answers"][1][1] for each in replies if passed(each)) == list(range(30)), (
        "each his own answer"
    )
    assert {each["answers"][2][1] for each in replies if passed(each)} == {3}
    assert {each["answers"][2][1] for each in replies if not passed(each)} == {4}, (
        "who was refused was not charged"
    )
    assert engine.take("large", "")[1] == 400 - 30 - 1
    assert engine.take("user", "u1", 4)[0] == (0 if passed(replies[1]) else 1)
    assert runs(redis_server) - before < len(replies) / 4, "many calls are decided in one run"


def test_one_charge_and_other_costs(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    engine = gate.engine(redis_server.url, {"one": "1000/hour fixed", "two": "500/hour fixed"})
    costs = [i % 4 for i in range(MANY)]
    replies = at_once(
        engine, *([("one", "k", cost)] if cost else [("one", "k", 2), ("two", "k", 5)] for cost in costs)
    )
    assert all(map(passed, replies))
    assert engine.take("one", "k", 0)[1] == 1000 - sum(cost or 2 for cost in costs)
    assert engine.take("two", "k", 0)[1] == 500 - 5 * costs.count(0)


def test_other_requests_share_the_round_trip(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    """Another algorithm, a log, a rule that is aside, a calendar's window."""
    amounts = {"tb": 90, "tb2": 70, "fw": 60, "log": 50, "month": 40, "aside": 30}
    forms = {"fw": "hour fixed", "log": "hour log", "month": "month fixed"}
    limits = {name: f"{amount}/{forms.get(name, 'hour')}" for name, amount in amounts.items()}
    engine = gate.engine(redis_server.url, limits, {"aside": {"is_shadow": True}}, {"UTC": [[0, 0]]})
    kinds: list[list[str]] = [["tb"], ["tb", "tb2"], ["fw"], ["log"], ["tb", "log"], ["month"], ["tb", "aside"]]
    replies = at_once(engine, *([(name, "x", 1) for name in kinds[i % 7]] for i in range(7 * 20)))
    assert not any(each.get("trouble") for each in replies)
    assert all(map(passed, replies)), "none of them is used up"
    counts = Counter(name for i in range(7 * 20) for name in kinds[i % 7])
    left = {name: engine.take(name, "x", 0)[1] for name in amounts}
    assert left == {name: amount - counts[name] for name, amount in amounts.items()}


def test_a_server_that_forgot_the_scripts(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    engine = gate.engine(redis_server.url, {"a": "1000/hour", "b": "1000/hour"})
    for turn in range(3):
        redis_server.call("SCRIPT", "FLUSH")
        replies = at_once(engine, *([("a", f"k{turn}", 1), ("b", f"k{i}", 1)] for i in range(MANY)))
        assert all(map(passed, replies))
        assert engine.take("a", f"k{turn}", 0)[1] == 1000 - MANY
    before = runs(redis_server)
    at_once(engine, *([("a", "k", 1), ("b", "k", 1)] for _ in range(MANY)))
    assert runs(redis_server) - before < MANY / 4, "it knows the script of many calls again"


def test_the_same_count_under_another_limit(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    """The rule has changed, and some were on their way by then: both are decided, each by its own limit."""
    engine = gate.engine(redis_server.url, {"before": "1000/hour fixed", "after": "600/hour fixed"})
    engine.do("one_count")
    replies = at_once(engine, *([(("before", "after")[i % 2], "k", 1)] for i in range(MANY)))
    assert all(map(passed, replies))
    left = [[each["answers"][0][1] for each in replies[start::2]] for start in (0, 1)]
    used = sorted([1000 - each for each in left[0]] + [600 - each for each in left[1]])
    assert used == list(range(1, MANY + 1))


def test_a_count_that_is_not_ours(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    engine = gate.engine(redis_server.url, {"a": "1000/hour", "b": "1000/hour"})
    engine.take("b", "bad")
    key = keys.build_key(keys.key_head("hg", "token_bucket", "b"), "bad")
    assert redis_server.call("DEL", key) == 1
    redis_server.call("LPUSH", key, "not ours")
    replies = at_once(engine, *([("a", "k", 1), ("b", "bad" if i % 5 == 4 else "good", 1)] for i in range(MANY)))
    for i, each in enumerate(replies):
        if i % 5 == 4:
            assert "holds a value that headgate did not write" in each["trouble"]["text"]
        else:
            assert passed(each)
    assert engine.take("a", "k", 0)[1] == 1000 - MANY * 4 // 5
    assert redis_server.call("LRANGE", key, 0, -1) == [b"not ours"]


def test_more_counts_than_one_question_has_room_for(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    """A script can have some thousand values in its hands."""
    rules = {f"r{number}": "100/hour" for number in range(600)}
    engine = gate.engine(redis_server.url, rules)
    replies = at_once(engine, *([(name, f"k{i}", 1) for name in rules] for i in range(40)))
    assert all(len(each["answers"]) == 600 and passed(each) for each in replies)
    assert {outcome[1] for each in replies for outcome in each["answers"]} == {99}
