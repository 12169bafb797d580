"""headgate simulate: cases from files."""

import json
from pathlib import Path

import pytest

from headgate.adaptive.simulation.case import ClosedLoad, ThreadsSettings
from headgate.cli import main
from headgate.cli.simulation_case import read_case

CASE = """
name: short
seeds: [1, 2]
server: {threads: 4, slices: 100}
timeout: 2s
load:
  - {for: 2s, rate: 50, work: 50ms, priorities: {high: 0.5, low: 0.5}}
  - {for: 2s, rate: 6000/minute, work: 100ms, arrivals: even, threads: 2}
limiters: [none, {bulkhead: 8}, {rate: 50/s}, breaker, aimd, vegas, gradient2, adaptive,
           {adaptive: {floor: 2, ceiling: 40, initial: 4, queue: 20ms}}, {target_rate: {target: 200ms}}]
"""

FIELDS = {
    *("stage", "rate", "work", "seconds", "offered", "accepted", "refused", "timed_out", "deferred", "good"),
    *("goodput", "p50", "p90", "p99", "mean_in_flight", "max_in_flight", "min_limit", "mean_limit", "max_limit"),
}


def _file(folder: Path, text: str) -> Path:
    path = folder / "case.yaml"
    path.write_text(text)
    return path


def test_it_answers_with_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--case", str(_file(tmp_path, CASE)), "--json", "--workers", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["name"], document["seeds"], len(document["limiters"])) == ("short", [1, 2], 10)
    for entry in document["limiters"]:
        assert len(entry["stages"]) == 2
        assert all(set(stage) >= FIELDS for stage in entry["stages"])
        assert entry["stages"][0]["priorities"].keys() == {"high", "low"}


def test_it_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--case", str(_file(tmp_path, CASE)), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("short, 2 seeds\nlimiter")
    assert "bulkhead 8" in out
    assert "priority" in out


def test_every_part_of_a_case_is_read(tmp_path: Path) -> None:
    case = read_case(_file(tmp_path, CASE))
    assert case.server == ThreadsSettings(4, 100)
    assert isinstance(case.load, tuple)
    assert (case.load[1].rate, case.load[1].even, case.load[1].threads) == (100.0, True, 2)
    assert case.load[0].priorities == {"high": 0.5, "low": 0.5}
    assert case.limiters[8].options == {"floor": 2, "ceiling": 40, "initial": 4, "queue": 0.02}
    assert case.timeout == 2.0


@pytest.mark.parametrize(
    "closed", ["closed: {requests: 500, interval: 25ms}", "load: {closed: {requests: 500, interval: 25ms}}"]
)
def test_a_client_can_send_as_fast_as_it_may(tmp_path: Path, closed: str) -> None:
    server = (
        "server: {delay: 100ms, scale: 0, knee_start: 10, knee_exp: 1.1, jitter: 0.1, defer_above: 5, "
        "drop_above: 5, defer_rate: 100/s}"
    )
    case = read_case(_file(tmp_path, f"{server}\n{closed}\nlimiters: [adaptive]"))
    assert case.load == ClosedLoad(500, 0.025)
    assert case.name == "case"
    assert case.seeds == (1, 2, 3, 4, 5)
    assert not isinstance(case.server, ThreadsSettings)
    assert case.server["defer_rate"] == 100.0


def test_a_class_is_the_same_in_every_stage(tmp_path: Path) -> None:
    case = read_case(_file(tmp_path, CASE.replace("arrivals: even", "priorities: {low: 1}")))
    assert isinstance(case.load, tuple)
    assert [list(stage.priorities.items()) for stage in case.load] == [
        [("high", 0.5), ("low", 0.5)],
        [("high", 0.0), ("low", 1.0)],
    ]


@pytest.mark.parametrize("closed", ["closed: {requests: 5}", "load: {closed: {requests: 5}}"])
def test_a_client_of_threads_needs_the_work_of_a_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], closed: str
) -> None:
    path = _file(tmp_path, f"server: {{threads: 4}}\n{closed}\nlimiters: [adaptive]")
    assert main(["simulate", "--case", str(path)]) == 2
    assert f"{path}:2: A closed load lacks the field work." in capsys.readouterr().err
    case = read_case(_file(tmp_path, path.read_text().replace("requests: 5", "requests: 5, work: 20ms")))
    assert case.load == ClosedLoad(5, 0.0, 0.02)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("threads: 4", "threads: 0", "4: threads is a whole number from 1 to 10,000"),
        ("threads: 4", "treads: 4", '4: server has no field "treads".\n  Did you mean threads?'),
        ("seeds: [1, 2]", "seeds: 1", '3: seeds is a list of 1 to 100 whole numbers, not "1".'),
        ("timeout: 2s", "timeout: 2", '5: "2" is not a length of time.'),
        ("for: 2s", "for: 0s", '7: "0s" must be more than 0.'),
        (
            "arrivals: even",
            "priorities: {low: 0.5, high: 0.5}",
            "8: The order of priorities is high, low in another stage, and not low, high.",
        ),
        ("rate: 50", "rat: 50", '7: A stage has no field "rat".\n  Did you mean rate?'),
        ("rate: 50", "rate: many", '7: "many" is not a limit.'),
        (", work: 50ms", "", "7: A stage lacks the field work."),
        ("arrivals: even", "arrivals: odd", '8: arrivals cannot be "odd".'),
        ("{high: 0.5, low: 0.5}", "[high, low]", "7: priorities is a mapping, not a list."),
        ("{high: 0.5, low: 0.5}", "{high: 0, low: 0}", "7: The shares of the priorities are all 0."),
        ("none,", "non,", '9: A limiter cannot be "non".\n  Did you mean none?'),
        ("{bulkhead: 8}", "bulkhead", "9: A bulkhead needs a number.\n  Write {bulkhead: 40}."),
        ("{bulkhead: 8}", "{bulkhead: 8, rate: 5/s}", "9: A limiter is one name with its setting."),
        ("{rate: 50/s}", "{rate: 5 slots}", '9: rate is a token bucket, not "5 slots".'),
        ("breaker", "{breaker: 5}", "9: breaker takes no setting."),
        ("floor: 2,", "floor: 90,", "10: The floor of 90 is above the ceiling of 40: exchange them."),
        ("floor: 2,", "flor: 2,", '10: adaptive has no field "flor".\n  Did you mean floor?'),
        ("{target: 200ms}", "{quantile: 0.9}", "10: A target_rate needs a target."),
        ("{target_rate: {target: 200ms}}", "target_rate", "10: A target_rate needs a target."),
        ("for: 2s", "for: 300d", "1: The case has more than 50,000,000 calls."),
        ("load:", "closed: {requests: 5}\nload:", "2: A case has either a load or a closed one, not both."),
        ("seeds: [1, 2]", "seeds: []", "3: seeds is a list of 1 to 100 whole numbers, not an empty list."),
        ("{high: 0.5, low: 0.5}", "{}", "7: priorities is a mapping, not an empty mapping."),
        ("server: {threads: 4, slices: 100}", "server: {delay: 1s}", "8: A server with a delay has no threads"),
        ("load:", "load: {closed: {requests: 5}}\nx:", '7: A case has no field "x".'),
    ],
)
def test_a_bad_case_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert old in CASE
    path = _file(tmp_path, CASE.replace(old, new, 1))
    assert main(["simulate", "--case", str(path)]) == 2
    assert f"{path}:{message}" in capsys.readouterr().err


def test_every_problem_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CASE.replace("threads: 4", "threads: x").replace("rate: 50,", "rate: x,").replace("aimd", "amid")
    assert main(["simulate", "--case", str(_file(tmp_path, text)), "--json"]) == 2
    problems = json.loads(capsys.readouterr().err)["problems"]
    assert [problem["line"] for problem in problems] == [4, 7, 9]


def test_a_lacking_load_is_reported_with_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--case", str(_file(tmp_path, "server: {threads: 0}\nlimiters: []")), "--json"]) == 2
    problems = json.loads(capsys.readouterr().err)["problems"]
    assert [problem["problem"].partition("\n")[0] for problem in problems] == [
        "A case lacks the field load.",
        'threads is a whole number from 1 to 10,000, not "0".',
        "limiters is a list of at least one, not an empty list.",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("--html", "report.html"), ("--limit", "5/s"), ("--rules", "rules.yaml"), ("--rate", "7"), ("--for", "7s"),
        ("--clients", "7"), ("--per-client",), ("--retries", "none"), ("--duration", "7s"), ("--seed", "7"),
    ],
)  # fmt: skip
def test_options_of_shapes_do_not_go_with_a_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["simulate", "--case", str(_file(tmp_path, CASE)), *words]) == 2
    assert f"{words[0]} goes with a shape of traffic, not with --case" in capsys.readouterr().err
    assert main(["simulate", "ramp", "--limit", "5/s", "--workers", "2"]) == 2
    assert "--workers shares a long case" in capsys.readouterr().err


def test_a_case_that_is_not_there_or_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--case", str(tmp_path / "none.yaml")]) == 2
    assert f"{tmp_path}/none.yaml: The case cannot be read: No such file or directory." in capsys.readouterr().err
    assert main(["simulate", "--case", str(_file(tmp_path, "  \n"))]) == 2
    assert "The case is empty." in capsys.readouterr().err
