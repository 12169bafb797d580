"""Every command has a readable example, prints one JSON document with --json, and its errors as JSON."""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.cli import tree
from tests.cli.conftest import Prompt

ROOT = Path(__file__).parents[2]


def commands(parser: argparse.ArgumentParser | None = None) -> Iterator[argparse.ArgumentParser]:
    """Every command that can be run."""
    parser = parser or tree()
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for each in action.choices.values():
            yield from commands(each)


ALL = list(commands())


@pytest.mark.parametrize("parser", ALL, ids=lambda parser: parser.prog)
def test_every_command_takes_json_and_has_an_example_that_can_be_read(parser: argparse.ArgumentParser) -> None:
    assert "--json" in parser.format_help()
    assert parser.epilog is not None
    assert parser.epilog.startswith("example")
    typed = [line.strip() for line in parser.epilog.splitlines() if line.strip().startswith("headgate ")]
    typed += ["headgate completion bash"] * (parser.prog == "headgate completion")
    assert typed
    for line in typed:
        words = shlex.split(line.partition(" > ")[0])
        assert line.startswith(parser.prog)
        tree().parse_args(words[1:])


@pytest.mark.parametrize("parser", ALL, ids=lambda parser: parser.prog)
def test_help_fits_a_page(parser: argparse.ArgumentParser) -> None:
    assert max(map(len, (parser.description or "").splitlines())) <= 115


@pytest.mark.parametrize(
    "words",
    [
        ("limit", "100/s"),
        ("lua", "list"),
        ("lua", "show", "take_all"),
        ("demo",),
        ("completion", "bash"),
        ("rules", "schema"),
    ],
)
def test_one_document_on_stdout(prompt: Prompt, words: tuple[str, ...]) -> None:
    assert isinstance(prompt.json(*words), dict)
    assert prompt.err == ""


def test_the_demo_as_a_document(prompt: Prompt) -> None:
    document = prompt.json("demo")
    assert len(document["gates"]) == 7
    assert all(gate["passed"] + gate["refused"] == document["calls"] for gate in document["gates"])


def test_a_limit_as_a_document(prompt: Prompt) -> None:
    document = prompt.json("limit", "10/s; 500/hour")
    assert [limit["limit"] for limit in document["limits"]] == ["10/s", "500/hour"]
    assert document["limits"][0]["algorithm"] == "token_bucket"
    assert "exact" in document["limits"][0]["explained"]


def test_options_are_not_guessed(prompt: Prompt) -> None:
    message = prompt.failure("limit", "10/s", "--nod", "3")
    assert '"--nod" is not an option of headgate limit. Did you mean --nodes?' in message


def test_with_json_only_a_json_error_is_printed(prompt: Prompt) -> None:
    assert prompt("limit", "10/minit", "--json") == 2
    assert prompt.out == ""
    assert "Did you mean 10/minute?" in json.loads(prompt.err)["error"]


def test_it_runs_without_redis() -> None:
    program = (
        "import sys; sys.modules['redis'] = sys.modules['hiredis'] = None\n"
        "from headgate.cli import main\n"
        "assert main(['limit', '10/s', '--json']) == 0\n"
        "sys.exit(main(['keys', '--engine', 'redis://127.0.0.1:1']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    assert "pip install 'headgate[redis]'" in ran.stderr
