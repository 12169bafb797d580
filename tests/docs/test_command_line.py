"""The page of the command line names every command, option and exit code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headgate.cli
from headgate.cli import output
from headgate.cli.completion import SHELLS, CommandNode, command_nodes

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text("utf-8")
TREE = list(command_nodes(headgate.cli.tree()))

_COMMANDS = re.compile(r"`headgate ([^`]*)`((?:, `[^`]*`)*)")


def named_commands() -> set[str]:
    """The commands that the page names: `headgate rules push`, and `pull` after it is `headgate rules pull`."""
    paths = set()
    for first, others in _COMMANDS.findall(PAGE):
        words = [word for word in first.split() if re.fullmatch(r"[a-z]+", word) and word not in SHELLS]
        paths.add("/" + "/".join(words))
        for other in re.findall(r"`([^`]*)`", others):
            paths.add("/" + "/".join([*words[:-1], other.split()[-1]]))
    return paths


@pytest.mark.parametrize("place", [place for place in TREE if place.path], ids=lambda place: place.path)
def test_every_command_is_named(place: CommandNode) -> None:
    if place.commands:  # a word under which commands stand
        assert f"headgate{place.path.replace('/', ' ')} " in PAGE
    else:
        assert place.path in named_commands()


def test_nothing_is_named_that_is_no_command() -> None:
    assert named_commands() - {"/"} <= {place.path for place in TREE}


@pytest.mark.parametrize(
    "option", sorted({name for place in TREE for option in place.options for name in option.names} - {"-h"})
)
def test_every_option_is_named(option: str) -> None:
    assert re.search(rf"{option}(?![a-z-])", PAGE)


def test_every_exit_code_is_documented() -> None:
    codes = {output.DONE, output.ENGINE_UNAVAILABLE, output.INVALID, output.NEGATIVE, output.INTERRUPTED}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.M)} == codes


def test_every_shell_is_documented() -> None:
    assert all(f"headgate completion {shell}" in PAGE for shell in SHELLS)
