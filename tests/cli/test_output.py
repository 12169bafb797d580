"""The same answer on a terminal, into a pipe and as a document: colours and cuts are for the terminal alone."""

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli.output import NEGATIVE, Output, warn
from headgate.cli.text_table import Cell, TextTable

ROOT = Path(__file__).parents[2]
ANSWER = Output(
    {"a": 1}, ["a line", ("red\x1b[2J", "red"), TextTable(("key",), [(Cell("k" * 200, "green"),)])], NEGATIVE
)
PROGRAM = "from tests.cli.test_output import ANSWER; ANSWER.write(as_json=False)"


def on_a_terminal(columns: int) -> str:
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm", "PYTHONPATH": f"src{os.pathsep}."}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, stdout=theirs) as process:
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], 20)[0]:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the other end was closed
                break
        process.wait(20)
    os.close(ours)
    return seen.decode()


def test_a_terminal_gets_colours_and_no_more_than_it_holds() -> None:
    line, message, title, row = on_a_terminal(40).splitlines()
    assert line == "a line"
    assert message == "\x1b[31mred\\x1b[2J\x1b[0m", "and obeys nobody's text"
    assert title == "\x1b[2mkey\x1b[0m"
    assert row == f"\x1b[32m{'k' * 39}…\x1b[0m"


def test_a_pipe_gets_all_of_it_and_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    assert ANSWER.write(as_json=False) == NEGATIVE
    assert capsys.readouterr().out == f"a line\nred\\x1b[2J\nkey\n{'k' * 200}\n"


def test_a_document_is_one_and_says_no_by_its_exit_code_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert ANSWER.write(as_json=True) == NEGATIVE
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_a_warning_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    warn("Look out.", as_json=False)
    warn("Look out.", as_json=True)
    assert capsys.readouterr().err == 'headgate: Look out.\n{"warning": "Look out."}\n'


def test_text_that_is_half_a_character_is_still_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    Output({"key": "\udc80"}).write(as_json=True)
    assert json.loads(capsys.readouterr().out) == {"key": "\udc80"}
