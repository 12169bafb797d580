"""Completion: a real bash finishes the words, and every command is known to every shell."""

import os
import shlex
import subprocess

import pytest

from headgate.cli import tree
from headgate.cli.completion import SHELLS, command_nodes
from tests.cli.conftest import Prompt


def completed(script: str, line: str, environment: dict[str, str] | None = None) -> list[str]:
    """Returns what bash offers when TAB is pressed at the end of the line."""
    words = line.split(" ")
    program = f"""
        {script}
        COMP_WORDS=({" ".join(shlex.quote(word) for word in words)})
        COMP_CWORD={len(words) - 1}
        _headgate
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ran = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.fixture
def bash(prompt: Prompt) -> str:
    assert prompt("completion", "bash") == 0
    return prompt.out


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("headgate ru", ["rules"]),
        ("headgate rules va", ["validate"]),
        ("headgate rules p", ["push", "pull"]),
        ("headgate lua publish --eng", ["--engine"]),
        ("headgate take ann --li", ["--limit"]),
        ("headgate take --name rules --li", ["--limit"]),
        ("headgate completion ", ["bash", "zsh", "fish", "-h", "--help", "--json"]),
        ("headgate take --engine re", []),
        ("headgate nonsense", []),
    ],
)
def test_bash_finishes_the_word(bash: str, line: str, offered: list[str]) -> None:
    assert completed(bash, line) == offered


def test_bash_offers_files_where_a_file_stands(
    bash: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("shop.yaml", "w") as file:
        file.write("rules: []")
    assert completed(bash, "headgate rules validate sh", dict(os.environ)) == ["shop.yaml"]
    assert completed(bash, "headgate keys --rules sh", dict(os.environ)) == ["shop.yaml"]
    assert completed(bash, "headgate keys --rule sh", dict(os.environ)) == []
    assert completed(bash, "headgate nginx conf sh", dict(os.environ)) == ["shop.yaml"]
    assert completed(bash, "headgate nginx conf shop.yaml --bundle sh", dict(os.environ)) == ["shop.yaml"]
    assert completed(bash, "headgate rules compile shop.yaml -o sh", dict(os.environ)) == ["shop.yaml"]
    assert completed(bash, "headgate lua copy sh", dict(os.environ)) == ["shop.yaml"]


def test_bash_registers_it(bash: str) -> None:
    ran = subprocess.run(
        ["bash", "--norc", "-c", f"{bash}\ncomplete -p headgate"], capture_output=True, text=True, check=True
    )
    assert "_headgate" in ran.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_completes_every_command(prompt: Prompt, shell: str) -> None:
    document = prompt.json("completion", shell)
    assert document["shell"] == shell
    for place in command_nodes(tree()):
        assert place.path in document["script"]
        assert all(word in document["script"] for word, _ in place.commands)


def test_an_unknown_shell_lists_the_supported_ones(prompt: Prompt) -> None:
    assert (
        prompt.failure("completion", "powershell")
        == '"powershell" is not what SHELL may be. Known: bash, zsh, fish.'
    )
