"""The command line at a prompt: answers on stdout, one sentence on stderr, an exit code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headgate
from headgate.algorithms.durations import in_words
from headgate.cli import main

ROOT = Path(__file__).parents[2]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def sentence(err: str) -> str:
    """The one line that an error is."""
    assert err.startswith("headgate: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("headgate: ").rstrip("\n")


def test_alone_it_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert all(word in out for word in ("demo", "limit", "lua", "take", "keys", "overrides", "rules"))
    assert all(f"{code}  " in out for code in (0, 1, 2, 3, 130)), "exit codes are told"


def test_it_knows_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"headgate {headgate.__version__}\n"


@pytest.mark.parametrize("module", ["headgate", "headgate.cli"])
def test_python_runs_it_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "limit", "10/minit"]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": "src"}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Did you mean 10/minute?" in sentence(ran.stderr)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dmeo"], '"dmeo" is not a command of headgate. Did you mean demo?'),
        (["xyzzy"], '"xyzzy" is not a command of headgate. Known: limit, take, peek,'),
        (["lua", "publsh"], '"publsh" is not a command of headgate lua. Did you mean publish?'),
        (["lua"], "The following arguments are required: COMMAND. See headgate lua --help."),
        (["limit"], "The following arguments are required: text. See headgate limit --help."),
        (["demo", "--sceonds", "3"], '"--sceonds" is not an option of headgate demo. Did you mean --seconds?'),
        (["demo", "--xyzzy=3"], '"--xyzzy" is not an option of headgate demo. See headgate demo --help.'),
        (["serve", "--worker", "2"], '"--worker" is not an option of headgate serve. Did you mean --workers?'),
        (["demo", "3"], "Unrecognized arguments: 3. See headgate --help."),
        (["demo", "--seconds", "0"], "Argument --seconds: a number of seconds above 0 and up to 3600, not '0'."),
        (
            ["demo", "--seconds", "nan"],
            "Argument --seconds: a number of seconds above 0 and up to 3600, not 'nan'.",
        ),
        (
            ["lua", "show", "take/token_buckt"],
            'There is no script "take/token_buckt". Did you mean take/token_bucket?',
        ),
        (["lua", "show", "?"], 'There is no script "?". See headgate lua list.'),
        (["limit", "10/minit"], "Did you mean 10/minute?"),
        (["limit", ""], '"" is not a limit.'),
        (["limit", "0/s"], "must be a whole number of at least 1, not 0."),
    ],
)
def test_a_usage_error_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in sentence(err)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("100/s burst 200", ["200 at once", "one every 10 ms", "after 2 s at most", "above 200 never"]),
        ("700000/s", ["7 units are 10 us", "one every 1.43 us"]),
        ("1/year", ["one every 365 days"]),
        (
            "6/minute queue 5",
            ["1 at once; up to 5 more wait in the queue, 10 s each", "0.1 a second", "after 1 minute"],
        ),
        ("10/minute queue 0", ["0.166 a second", "none waits"]),
        ("6/minute queue 5 nodelay", ["6 at once"]),
        ("6/minute queue 5 delay 3", ["4 at once; up to 2 more wait"]),
        ("1000/day fixed in Asia/Shanghai", ["1,000 in each day in Asia/Shanghai", "2,000 around an edge"]),
        ("5/2s fixed", ["5 in each window of 2 s"]),
        ("600/minute sliding", ["10 cells, 6 s each", "600 in the last minute", "54 s to 1 minute"]),
        ("70000/day log", ["70,000 in any day", "490,039 bytes"]),
        ("10/s smooth warmup 5s", ["3 times slower", "after 5 s of steady demand"]),
        ("10/s smooth burst 2s", ["20 units", "after 1 day"]),
        ("20 slots", ["20 holders at a time", "30 s loses its slot"]),
    ],
)
def test_a_limit_is_explained(capsys: pytest.CaptureFixture[str], text: str, lines: list[str]) -> None:
    code, out, err = run(capsys, "limit", text)
    assert (code, err) == (0, "")
    words = re.sub(r"\s+", " ", out)
    assert all(each in words for each in (*lines, "algorithm", "exact", "idle keys", "refused"))
    assert all(len(line) <= 110 for line in out.splitlines())


def test_several_limits_are_explained_together(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "limit", "10/s; 500/hour")
    assert code == 0
    assert out.count("algorithm") == 2
    assert "decided together" in out


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (1.428571, "1.43 us"),
        (10_000, "10 ms"),
        (1_500_000, "1.5 s"),
        (90_000_000, "90 s"),
        (60_000_000, "1 minute"),
        (5_400_000_000, "90 minutes"),
        (172_800_000_000, "2 days"),
    ],
)
def test_durations_are_printed_in_words(us: float, words: str) -> None:
    assert in_words(us) == words


def test_a_reader_that_goes_away_is_no_error() -> None:
    environment = os.environ | {"PYTHONPATH": "src"}
    command = f"{sys.executable} -m headgate.cli lua show take_all | head -1"
    ran = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert (ran.stdout.count("\n"), ran.stderr) == (1, "")


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headgate.cli.limit.parse_all", interrupted)
    assert run(capsys, "limit", "10/s") == (130, "", "")
