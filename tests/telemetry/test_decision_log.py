"""A decision log has a line for every call, with all that its reader needs."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path

import pytest

from headgate import AsyncLimiter, Charge, EngineUnavailable, Limiter, ManualClock
from headgate.algorithms.decision import Decision
from headgate.enforcement.check_together import BatchedCall
from headgate.errors import InvalidSetting
from headgate.rules import load
from headgate.telemetry import decision_log
from headgate.telemetry.decision_log import DecisionLog
from headgate.telemetry.decision_record import process_name
from tests.telemetry.log_lines import read_lines

NOW_US = 1_794_800_944_000_000
RULES = {
    "rules": [
        {"name": "login", "key": "address", "missing": "deny", "limit": "2/minute", "candidate": "1/minute"},
        {"name": "user", "key": "user", "missing": "skip", "limit": "1/minute", "mode": "shadow"},
    ]
}
DEAD = "redis://127.0.0.1:1/0?deadline=50ms"


def test_a_line_has_everything_about_its_call(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", ManualClock(NOW_US)
    with Limiter.from_rules(RULES, clock=clock, observers=[DecisionLog(path)]) as limiter:
        for _ in range(3):
            clock.advance(1)
            limiter.check({"address": "192.0.2.7", "user": "ann", "unused": "x"}, 1)
    first, second, third = read_lines(path)
    assert first.pop("latency_us") >= 0
    assert first == {
        "at_us": NOW_US + 1_000_000,
        "seq": 1,
        "process": process_name(),
        "attributes": {"address": "192.0.2.7", "user": "ann"},
        "cost": 1,
        "allowed": True,
        "rule": "login",
        "version": None,
        "sample": 1,
        "status": None,
        "verdicts": [
            {
                "rule": "login",
                "key": "address=192.0.2.7",
                "limit": "2/minute",
                "cost": 1,
                "allowed": True,
                "remaining": 1,
                "retry_after_us": 0,
                "delay_us": 0,
            }
        ],
        "shadow": [
            {
                "rule": "user",
                "key": "user=ann",
                "limit": "1/minute",
                "cost": 1,
                "allowed": True,
                "remaining": 0,
                "retry_after_us": 0,
                "delay_us": 0,
            }
        ],
        "candidate": [
            {
                "rule": "login",
                "key": "address=192.0.2.7",
                "limit": "1/minute",
                "cost": 1,
                "allowed": True,
                "remaining": 0,
                "retry_after_us": 0,
                "delay_us": 0,
            }
        ],
    }
    assert [each["allowed"] for each in (first, second, third)] == [True, True, False]
    assert [each["candidate"][0]["allowed"] for each in (first, second, third)] == [True, False, False]
    assert third["verdicts"][0]["retry_after_us"] == 28_000_000
    assert [each["seq"] for each in (first, second, third)] == [1, 2, 3]


def test_a_call_without_a_limit_and_one_that_is_denied_have_the_time_of_the_log(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", ManualClock(NOW_US)
    rules = {
        "rules": [{"name": "api", "when": {"path": "/api/**"}, "key": "user", "missing": "deny", "limit": "1/s"}]
    }
    with Limiter.from_rules(rules, clock=clock, observers=[DecisionLog(path, clock=clock)]) as limiter:
        limiter.check({"path": "/"})
        limiter.check({"path": "/api/x"})
    free, denied = read_lines(path)
    assert (free["at_us"], free["allowed"], free["rule"], free["verdicts"]) == (NOW_US, True, None, [])
    assert (denied["at_us"], denied["allowed"], denied["rule"]) == (NOW_US, False, "api")
    assert denied["verdicts"][0]["limit"] is None


def test_attributes_are_those_of_the_moment_and_in_normal_form(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter.from_rules(RULES, observers=[DecisionLog(path)]) as limiter:
        call = {"address": "::ffff:192.0.2.7", "user": b"caf\xe9"}
        limiter.check(call)
        call["user"] = "somebody else"
    [line] = read_lines(path)
    assert line["attributes"] == {"address": "192.0.2.7", "user": "caf\udce9"}


def test_a_limiter_without_rules(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter("1/minute", clock=ManualClock(NOW_US), observers=[DecisionLog(path)]) as limiter:
        limiter.take("ann")
        limiter.take_all([Charge("bob"), Charge("everybody", "9/s", cost=2)])
        limiter.reserve("ann")
    one, several, later = read_lines(path)
    assert (one["attributes"], one["cost"], one["rule"]) == ({"key": "ann"}, 1, None)
    assert [(each["key"], each["cost"]) for each in several["verdicts"]] == [("bob", 1), ("everybody", 2)]
    assert later["verdicts"][0]["delay_us"] == 60_000_000


def test_calls_decided_together_say_so(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter.from_rules(RULES, observers=[DecisionLog(path)]) as limiter:
        limiter.check_together(
            [BatchedCall({"address": "192.0.2.7"}), BatchedCall({}), BatchedCall({"address": "192.0.2.8"}, 5)]
        )
    lines = read_lines(path)
    assert [each["together"] for each in lines] == [[0, 3], [1, 3], [2, 3]]
    assert [each["cost"] for each in lines] == [None, None, 5]
    assert len({each["at_us"] for each in lines}) == 1


def test_a_call_that_waited_says_how_long_it_would_have(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter.from_rules(RULES, clock=ManualClock(NOW_US), observers=[DecisionLog(path)]) as limiter:
        limiter.reserve({"address": "192.0.2.7"}, timeout=90)
    assert read_lines(path)[0]["patience_us"] == 90_000_000


def test_a_call_that_could_not_be_decided_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    limiter = Limiter.from_rules(RULES, DEAD, observers=[DecisionLog(path)])
    with limiter, pytest.raises(EngineUnavailable):
        limiter.check({"address": "192.0.2.7"})
    [line] = read_lines(path)
    assert line["allowed"] is None
    assert "127.0.0.1:1" in line["error"]


def test_overrides_and_the_version_of_the_rulebook(tmp_path: Path) -> None:
    path = tmp_path / "log"
    book = load.from_mapping(
        {"rules": [{"name": "api", "key": "user", "missing": "deny", "limit": "1/s", "overrides": True}]}
    )
    from dataclasses import replace

    with Limiter.from_rules(
        replace(book, version=7), clock=ManualClock(NOW_US), observers=[DecisionLog(path)]
    ) as limiter:
        limiter.overrides("api").set("user=ann", "9/s")
        limiter.check({"user": "ann"})
        limiter.check({"user": "bob"})
    ann, bob = read_lines(path)
    assert (ann["version"], ann["verdicts"][0]["override"], ann["verdicts"][0]["limit"]) == (7, "9/s", "9/s")
    assert bob["verdicts"][0]["override"] is None


def test_the_response_is_added_when_it_is_complete(tmp_path: Path) -> None:
    path, log = tmp_path / "log", DecisionLog(tmp_path / "log")
    with Limiter.from_rules(RULES, observers=[log]) as limiter:
        decisions = [
            limiter.decide_plan(limiter.plan_call({"address": f"192.0.2.{number}"}), response_follows=True)
            for number in range(3)
        ]
        log.responded(decisions[1], 204, 1500)
        log.responded(decisions[1], 500, 9)  # once is enough
        log.responded(Decision((True, 0, 0, 0, 0, 0, 0), decisions[0].source, "x", 1), 200, 1)  # not its own
    lines = sorted(read_lines(path), key=lambda each: int(each["seq"]))
    assert [each["status"] for each in lines] == [None, 204, None]
    assert [each.get("duration_us") for each in lines] == [None, 1500, None]


def test_a_response_that_never_comes_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "MAX_PENDING", 2)
    path = tmp_path / "log"
    log = DecisionLog(path)
    limiter = Limiter.from_rules(RULES, observers=[log])
    for number in range(5):
        limiter.decide_plan(limiter.plan_call({"address": f"192.0.2.{number}"}), response_follows=True)
    log._queue.close()
    assert [each["seq"] for each in read_lines(path)] == [1, 2, 3]
    limiter.close()
    assert [each["seq"] for each in read_lines(path)] == [1, 2, 3, 4, 5]


def test_a_sample_keeps_every_refusal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter.from_rules(RULES, clock=ManualClock(NOW_US), observers=[DecisionLog(path, sample=0)]) as limiter:
        for _ in range(5):
            limiter.check({"address": "192.0.2.7"})  # the candidate refuses from the second on
        limiter.check({})  # denied
        limiter.check({"address": "192.0.2.8"})
    lines = read_lines(path)
    assert [each["allowed"] for each in lines] == [True, False, False, False, False]
    assert {each["sample"] for each in lines} == {0}


def test_a_sample_is_about_as_large_as_requested(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter("1000000/s", observers=[DecisionLog(path, sample=0.1)]) as limiter:
        for number in range(5000):
            limiter.take(f"user-{number % 7}")
    lines = read_lines(path)
    assert 350 < len(lines) < 650
    assert {each["sample"] for each in lines} == {0.1}


def test_hashed_keys(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for salt in ("first salt", "first salt", "other salt"):
        with Limiter.from_rules(RULES, observers=[DecisionLog(path, salt=salt)]) as limiter:
            limiter.check({"address": "2001:db8::1", "user": "ann"})
            limiter.check({"address": "2001:db8::2", "user": "bob|x"})
    text = path.read_text()
    assert "ann" not in text
    assert "2001:db8" not in text
    lines = read_lines(path)
    assert lines[0]["hashed"] == ["address", "user"]
    assert lines[0]["attributes"]["address"] == lines[1]["attributes"]["address"]  # one network
    assert lines[0]["attributes"]["user"] != lines[1]["attributes"]["user"]
    assert lines[0]["verdicts"][0]["key"] == f"address={lines[0]['attributes']['address']}"
    assert lines[1]["shadow"][0]["key"] == f"user={lines[1]['attributes']['user']}"
    assert lines[0]["attributes"] == lines[2]["attributes"] != lines[4]["attributes"]


async def test_async_limiters_write_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with AsyncLimiter.from_rules(RULES, clock=ManualClock(NOW_US), observers=[DecisionLog(path)]) as limiter:
        await limiter.check({"address": "192.0.2.7"}, 2)
        await limiter.check_together(
            [BatchedCall({"address": "192.0.2.7"}), BatchedCall({"address": "192.0.2.8"})]
        )
    assert [each["allowed"] for each in read_lines(path)] == [True, False, True]


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = DecisionLog(path)
    with Limiter("1000000/s", observers=[log]) as limiter:
        threads = [threading.Thread(target=lambda: [limiter.take("ann") for _ in range(500)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (log.written, log.dropped) == (4000, 0)
    assert sorted(each["seq"] for each in read_lines(path)) == list(range(1, 4001))


def test_a_log_that_was_closed_goes_on_with_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = DecisionLog(path)
    for _ in range(3):
        with Limiter("9/s", observers=[log]) as limiter:
            limiter.take("ann")
    assert len(read_lines(path)) == 3


def test_a_log_that_nobody_holds_any_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    limiter = Limiter("9/s", observers=[DecisionLog(path)])
    limiter.take("ann")
    before = {thread for thread in threading.enumerate() if thread.name == "headgate-decision-log"}
    del limiter
    gc.collect()
    assert len(read_lines(path)) == 1
    assert not any(thread.is_alive() for thread in before)


def test_a_forked_child_writes_its_calls(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = DecisionLog(path)
    limiter = Limiter("9/s", observers=[log])
    limiter.take("parent")
    pid = os.fork()
    if pid == 0:
        limiter.take("child")
        limiter.close()
        os._exit(0 if (log.written, log.dropped) == (1, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    limiter.take("parent")
    limiter.close()
    lines = read_lines(path)
    assert sorted(each["attributes"]["key"] for each in lines) == ["child", "parent", "parent"]
    assert len({each["process"] for each in lines}) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sample": 2}, "sample= is the part of the calls to record, from 0 to 1; not 2."),
        ({"sample": True}, "sample= is the part of the calls to record, from 0 to 1; not True."),
        ({"salt": "short"}, "The salt of a decision log has at least 8 characters."),
        ({"max_bytes": 0}, "max_bytes= is a whole number of at least 1, not 0."),
        ({"keep_files": -1}, "keep_files= is a whole number of at least 0, not -1."),
        ({"max_age": 0}, "max_age= is a number of seconds above 0, or None; not 0."),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    tmp_path: Path, settings: dict[str, float], sentence: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        DecisionLog(tmp_path / "log", **settings)  # type: ignore[arg-type]
    assert str(refused.value) == sentence
    assert not (tmp_path / "log").exists()


def test_lines_are_json_whatever_the_values(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter.from_rules(RULES, observers=[DecisionLog(path)]) as limiter:
        limiter.check({"address": "192.0.2.7", "user": 'a"\n\u2028\x00' + "x" * 5000})
    [line] = path.read_text().splitlines()
    assert len(json.loads(line)["attributes"]["user"]) == 2048
    assert json.loads(line)["cut"] == ["user"]
