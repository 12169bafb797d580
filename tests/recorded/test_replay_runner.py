"""The replay runner reports mismatches, counts exceptions by their reason, and names unreadable cases."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.recorded.__main__ import main, replay_files
from tests.recorded.driven_engines import memory_engine
from tests.recorded.replay import ReplayTally, replay, sort_cases
from tests.recorded.step_result import COST_0, HINGES, LIMIT_0, NEGATIVE, NEVER_LIMITS, STEPPED_BACK

Record = dict[str, Any]

GO = "golang.org/x/time/rate"
SPRING = "spring-cloud-gateway"
NGINX = "nginx limit_req"
GUAVA = "guava.RateLimiter"
THROTTLED = "throttled GCRA"
SENTINEL = "Sentinel"

TEN = {"limit_per_s": 10, "burst": 2}
SPRINGY = {"replenishRate": 1, "burstCapacity": 5}
CELLS = {"kind": "sliding_window", "buckets": 5, "interval_ms": 1000, "limit": 2}


def test_a_right_record_matches(tmp_path: Path) -> None:
    steps = [_allow(0, True, 1), _allow(0, True, 0), _allow(0, False, 0), _allow(100_000, True, 0)]
    tally = _replayed(tmp_path, GO, TEN, steps)
    assert (tally.compared, tally.mismatches, tally.apart) == (4, [], {})


RIGHT_BUT_ONE: list[tuple[str, Record, list[Record]]] = [
    (GO, TEN, [{"op": "allow", "t_us": 0, "cost": 2, "expect": {"allowed": False}}]),
    (GO, TEN, [{"op": "reserve", "t_us": 0, "cost": 2, "id": 0, "expect": {"allowed": True, "wait_ns": 1002}}]),
    (GO, TEN, [{"op": "cancel", "t_us": 0, "id": 0, "expect": {"tokens": 0.9}}]),
    (GUAVA, {"kind": "bursty", "rate": 5.0}, [{"t_us": 0, "expect": {"allowed": True, "wait_us": 2}}]),
    (
        GUAVA,
        {"kind": "warmup", "rate": 5.0, "warmup_us": 1_000_000},
        [{"op": "set_rate", "t_us": 0, "rate": 1.0, "expect": {"next_free_us": 2}}],
    ),
    (NGINX, {"rate": "1r/s"}, [{"t_ms": 0, "expect": {"nginx_status": "DELAYED"}}]),
    (NGINX, {"rate": "1r/s"}, [{"t_ms": 0, "expect": {"excess_milli": 1}}]),
    (NGINX, {"rate": "1r/s"}, [{"t_ms": 0, "expect": {"wait_ms": 1}}]),
    (NGINX, {"rate": "1r/s", "key": ""}, [{"t_ms": 0, "expect": {"allowed": False}}]),
    (
        THROTTLED,
        {"count": 1, "period_ns": 10**9, "max_burst": 0},
        [{"t_us": 0, "cost": 2, "expect": {"allowed": True}}],
    ),
    (SPRING, SPRINGY, [{"t_us": 0, "cost": 2, "expect": {"allowed": True, "tokens_left": 2}}]),
    (SENTINEL, CELLS, [{"t_ms": 0, "cost": 2, "expect": {"allowed": True, "count_before": 1}}]),
]


@pytest.mark.parametrize(("subject", "config", "steps"), RIGHT_BUT_ONE)
def test_a_wrong_record_is_seen(tmp_path: Path, subject: str, config: Record, steps: list[Record]) -> None:
    tally = _replayed(tmp_path, subject, config, steps)
    assert [(one.case, one.step, len(one.facts)) for one in tally.mismatches] == [("a case", 1, 1)]


@pytest.mark.parametrize(
    ("wait_ns", "mismatches"),
    [(99_999_000 - 11, 1), (99_999_000 - 10, 0), (100_000_000 + 10, 0), (100_000_000 + 11, 1)],
)
def test_a_delay_is_rounded_up_by_a_microsecond_at_most(tmp_path: Path, wait_ns: int, mismatches: int) -> None:
    spent = {"op": "allow", "t_us": 0, "cost": 2, "expect": {"allowed": True}}
    late = {"op": "reserve", "t_us": 0, "id": 0, "expect": {"allowed": True, "wait_ns": wait_ns}}
    assert len(_replayed(tmp_path, GO, TEN, [spent, late]).mismatches) == mismatches


def test_sub_microsecond_differences_are_excluded_and_later_steps_compared(tmp_path: Path) -> None:
    # Go's doubles: a token is there 0.3 ns early, and from then on 0.3 ns are owed.
    config = {"limit_per_s": 3, "burst": 1}
    steps = [
        _allow(0, True, 0),
        _allow(333_333.333, True, -1e-9),
        _allow(333_333.333, False, -1e-9),
        _allow(666_666, False, 0.999998),
        _allow(666_667, True, 0),
    ]
    tally = _replayed(tmp_path, GO, config, steps)
    assert (tally.mismatches, tally.apart, tally.compared) == ([], {HINGES: 1}, 4)


NO_EXCUSE: list[tuple[float, bool, float]] = [
    (999_999, True, -1e-6),  # a whole microsecond early
    (999_999, True, 0),  # as if Go had lacked nothing
    (999_999.5, True, 5e-7),
    (1_000_000, False, 0.99999998),  # 20 ns are more than the noise of doubles
]


@pytest.mark.parametrize(("t_us", "allowed", "tokens"), NO_EXCUSE)
def test_differences_above_a_microsecond_are_mismatches(
    tmp_path: Path, t_us: float, allowed: bool, tokens: float
) -> None:
    steps = [_allow(0, True, 0), _allow(t_us, allowed, tokens)]
    tally = _replayed(tmp_path, GO, {"limit_per_s": 1, "burst": 1}, steps)
    assert ([one.step for one in tally.mismatches], tally.apart) == ([2], {})


def test_go_may_refuse_by_the_noise_of_its_doubles_and_ours_is_taken_back(tmp_path: Path) -> None:
    steps = [_allow(0, True, 0), _allow(1_000_000, False, 0.999999995), _allow(1_000_000, True, 0)]
    tally = _replayed(tmp_path, GO, {"limit_per_s": 1, "burst": 1}, steps)
    assert (tally.mismatches, tally.apart) == ([], {HINGES: 1})


def test_a_cancel_is_compared_by_the_wait_it_leaves(tmp_path: Path) -> None:
    steps = [
        {"op": "reserve", "t_us": 0, "cost": 2, "id": 0, "expect": {"allowed": True, "wait_ns": 0}},
        {"op": "reserve", "t_us": 0, "cost": 2, "id": 1, "expect": {"allowed": True, "wait_ns": 200_000_000}},
        {"op": "cancel", "t_us": 100_000, "id": 1, "expect": {"tokens": 1}},
        {"op": "cancel", "t_us": 100_000, "id": 0, "expect": {"tokens": 1}},
    ]
    assert _replayed(tmp_path, GO, TEN, steps).mismatches == []


def test_costs_that_are_no_charge_are_apart_and_spring_is_followed_to_what_it_minted(tmp_path: Path) -> None:
    answers = [(5, 0), (0, 0), (-3, 3), (2, 1), (-9, 10), (6, 5), (5, 0)]
    steps = [
        {"t_us": 0, "cost": cost, "expect": {"allowed": cost != 6, "tokens_left": left}} for cost, left in answers
    ]
    tally = _replayed(tmp_path, SPRING, SPRINGY, steps)
    assert (tally.mismatches, tally.apart) == ([], {COST_0: 1, NEGATIVE: 2})


def test_after_a_negative_cost_nobody_else_is_followed(tmp_path: Path) -> None:
    tally = _replayed(tmp_path, GO, TEN, [_allow(0, True, 1), _allow(0, True, 9, -8), _allow(0, True, 8)])
    assert (tally.compared, tally.apart) == (1, {NEGATIVE: 2})


def test_steps_after_a_clock_step_back_are_excluded(tmp_path: Path) -> None:
    tally = _replayed(tmp_path, GO, TEN, [_allow(9, True, 1), _allow(8, False, 1), _allow(9, False, 1)])
    assert (tally.compared, tally.apart) == (1, {STEPPED_BACK: 2})


def test_limits_that_are_none_are_apart(tmp_path: Path) -> None:
    assert _replayed(tmp_path, GO, {"limit_per_s": 0, "burst": 3}, [_allow(0, True, 0)]).apart == {LIMIT_0: 1}
    hole = {"replenishRate": 100, "burstCapacity": 49}
    free = {"t_us": 0, "expect": {"allowed": True, "tokens_left": 48}}
    assert _replayed(tmp_path, SPRING, hole, [free]).apart == {NEVER_LIMITS: 1}


def test_several_limits_of_nginx_report_the_one_that_spoke(tmp_path: Path) -> None:
    # The last of equal delays, the first of two refusals; an empty key counts nowhere.
    both = {"rate": "1r/s", "burst": 1, "delay": 0}
    config = {"limits": [both | {"key": "user"}, {"rate": "2r/s", "burst": 2, "delay": 0, "key": "all"}]}
    steps = [
        {"t_ms": 0, "key": "b", "expect": {"nginx_status": "PASSED", "wait_ms": 0}},
        {"t_ms": 0, "key": "a", "expect": {"nginx_status": "DELAYED", "excess_milli": 1000, "wait_ms": 500}},
        {"t_ms": 0, "key": "a", "expect": {"nginx_status": "DELAYED", "excess_milli": 2000, "wait_ms": 1000}},
        {"t_ms": 0, "key": "a", "expect": {"nginx_status": "REJECTED", "excess_milli": 2000}},
        {"t_ms": 0, "key": "c", "expect": {"nginx_status": "REJECTED", "excess_milli": 3000}},
        {"t_ms": 0, "key": "", "expect": {"nginx_status": "REJECTED", "excess_milli": 3000}},
        {"t_ms": 500, "key": "", "expect": {"nginx_status": "DELAYED", "excess_milli": 2000, "wait_ms": 1000}},
    ]
    assert _replayed(tmp_path, NGINX, config, steps).mismatches == []


UNREADABLE: list[tuple[str, str]] = [
    ("", "is empty"),
    ("{", "vectors.jsonl:1: not JSON"),
    ("[]", "the case is not an object"),
    ('{"name": "x", "steps": []}', '"subject" of case x is not a text'),
    ('{"name": "x", "subject": "a sundial", "steps": []}', "x is of an unknown subject: 'a sundial'"),
    ('{"name": "x", "subject": "guava", "steps": [7]}', "step 1 is not an object"),
]


@pytest.mark.parametrize(("text", "sentence"), UNREADABLE)
def test_an_unreadable_file_is_reported(
    tmp_path: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vectors.jsonl"
    path.write_text(text)
    assert not replay_files([path], [memory_engine()]).good
    assert sentence in capsys.readouterr().out


MISSING: list[tuple[str, Record, Record, str]] = [
    (GO, {"limit_per_s": 1}, {}, 'the config of case a case does not say "burst"'),
    (GO, TEN, {"op": "allow", "expect": {"allowed": True}}, "step 1 does not say when it was"),
    (GO, TEN, {"op": "allow", "t_us": 0}, '"allowed" of the answer of step 1 is neither true nor false'),
    (GO, TEN, {"op": "guess", "t_us": 0}, "step 1 does something unknown: 'guess'"),
    (GO, TEN, {"t_us": 0, "cost": 1.5}, '"cost" of step 1 is not a whole number but 1.5'),
    (GO, {"limit_per_s": 1e300, "burst": 1}, {"t_us": 0}, "cannot be exact"),
    (NGINX, {"rate": "10 a day"}, {"t_ms": 0}, "is not one of nginx's"),
]


@pytest.mark.parametrize(("subject", "config", "step", "sentence"), MISSING)
def test_an_incomplete_case_is_reported(
    tmp_path: Path, subject: str, config: Record, step: Record, sentence: str
) -> None:
    tally = _replayed(tmp_path, subject, config, [step])
    assert len(tally.troubles) == 1
    assert sentence in tally.troubles[0]


def test_the_report_names_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _written(tmp_path, GO, TEN, [_allow(0, False, 0.5)] * 7)
    assert not replay_files([path], [memory_engine()]).good
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["vectors.jsonl", "memory", "1", "7", "7", "7", "0"]
    assert "  ! vectors.jsonl on memory: a case, step 1: allowed: expected False, got True" in lines
    assert "  ! vectors.jsonl on memory: and 2 more" in lines
    assert lines[-1] == "It does NOT agree: see the lines marked with !"


def test_a_run_that_hinges_too_often_is_not_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    early = [_allow(0, True, 0), _allow(999_999.999, True, -5e-10)]
    later = [_allow(1_000_000 * second, True, 0) for second in range(2, 220)]
    config = {"limit_per_s": 1, "burst": 1}
    assert replay_files([_written(tmp_path, GO, config, early + later)], [memory_engine()]).good
    assert not replay_files([_written(tmp_path, GO, config, early + later[:100])], [memory_engine()]).good
    assert "that is too many" in capsys.readouterr().out


def test_the_command_says_what_it_wants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main([str(tmp_path)]) == 2
    assert "there is no *.jsonl file in" in capsys.readouterr().err


@pytest.mark.servers
def test_the_command_replays_on_all_three_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _written(tmp_path, GO, TEN, [_allow(0, True, 1)])
    assert main([str(tmp_path)]) == 0
    assert "1 files on memory, redis, valkey: 3 steps, 3 compared, 0 mismatches" in capsys.readouterr().out
    _written(tmp_path, GO, TEN, [_allow(0, False, 0.5)])
    assert main([str(tmp_path)]) == 1


def _allow(t_us: float, allowed: bool, tokens: float, cost: int = 1) -> Record:
    return {"op": "allow", "t_us": t_us, "cost": cost, "expect": {"allowed": allowed, "tokens": tokens}}


def _written(folder: Path, subject: str, config: Record, steps: Sequence[Record]) -> Path:
    path = folder / "vectors.jsonl"
    path.write_text(json.dumps({"name": "a case", "subject": subject, "config": config, "steps": list(steps)}))
    return path


def _replayed(folder: Path, subject: str, config: Record, steps: Sequence[Record]) -> ReplayTally:
    file = sort_cases(_written(folder, subject, config, steps))
    assert file.troubles == []
    tally = replay(file, memory_engine())
    assert tally.steps == tally.compared + sum(tally.apart.values())
    return tally
