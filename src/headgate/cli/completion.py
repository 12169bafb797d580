"""headgate completion: prints a script that completes commands and options in a shell.

The script is generated from the parsers, so it always has the commands that exist. Every shell gets the same three
things about each command: the words that may follow, the options, and the value that each option takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headgate.cli.command_parser import Commands, Parser, command
from headgate.cli.output import Output

SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "OLD", "NEW", "BUNDLE", "RULEBOOK", "DIR")  # metavars of arguments that are files


class Value(NamedTuple):
    """The values that an argument may have: one of some words, a file, or (neither) anything."""

    words: tuple[str, ...] = ()
    file: bool = False


class Option(NamedTuple):
    names: tuple[str, ...]
    about: str
    value: Value | None  # None: a flag without a value


class CommandNode(NamedTuple):
    """A command or group in the tree: /rules/push, after the words `rules push`."""

    path: str
    commands: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    value: Value


def add(commands: Commands, tree: Callable[[], Parser]) -> None:
    parser = command(
        commands,
        "completion",
        lambda args: _output(args, tree()),
        "print a completion script for a shell",
        'eval "$(headgate completion bash)"',
        "headgate completion fish > ~/.config/fish/completions/headgate.fish",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def _output(args: argparse.Namespace, tree: Parser) -> Output:
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    script = scripts[args.shell](list(command_nodes(tree)))
    return Output({"shell": args.shell, "script": script}, [script])


def command_nodes(parser: argparse.ArgumentParser, path: str = "") -> Iterator[CommandNode]:
    """Yields every command and group of the tree, from its root."""
    commands: list[tuple[str, str]] = []
    options, value, children = [], Value(), []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands += [(choice.dest, choice.help or "") for choice in action._choices_actions]
            children += [command_nodes(each, f"{path}/{word}") for word, each in action.choices.items()]
        elif action.option_strings:
            is_flag = action.nargs == 0
            options.append(
                Option(tuple(action.option_strings), action.help or "", None if is_flag else _value(action))
            )
        else:
            value = Value(value.words + _value(action).words, value.file or _value(action).file)
    yield CommandNode(path, tuple(commands), tuple(options), value)
    for each in children:
        yield from each


def _value(action: argparse.Action) -> Value:
    return Value(tuple(map(str, action.choices or ())), action.metavar in _FILES)


def _bash(tree: list[CommandNode]) -> str:
    return f"""\
_headgate() {{
    local at= word current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words= files=
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$at/$word" in {_paths(tree)}) at="$at/$word" ;; esac
    done
    case "$at $before" in
{_by_option(tree, "words")}
        *) case "$at" in
{_by_node(tree, "words")}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [ -n "$files" ]; then COMPREPLY+=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _headgate headgate"""


def _zsh(tree: list[CommandNode]) -> str:
    return f"""\
#compdef headgate
_headgate() {{
    local at= word before="${{words[CURRENT-1]}}" known= files=
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$at/$word" in {_paths(tree)}) at="$at/$word" ;; esac
    done
    case "$at $before" in
{_by_option(tree, "known")}
        *) case "$at" in
{_by_node(tree, "known")}
        esac ;;
    esac
    compadd -- ${{=known}}
    if [ -n "$files" ]; then _files; fi
}}
compdef _headgate headgate"""


def _paths(tree: list[CommandNode]) -> str:
    return "|".join(node.path for node in tree if node.path)


def _by_option(tree: list[CommandNode], variable: str) -> str:
    lines = []
    for node in tree:
        for option in node.options:
            if option.value is not None:
                patterns = "|".join(f'"{node.path} {name}"' for name in option.names)
                lines.append(f"        {patterns}) {_assignment(option.value.words, option.value, variable)} ;;")
    return "\n".join(lines)


def _by_node(tree: list[CommandNode], variable: str) -> str:
    lines = []
    for node in tree:
        completions = [word for word, _ in node.commands] + list(node.value.words)
        completions += [name for option in node.options for name in option.names]
        lines.append(f'            "{node.path}") {_assignment(tuple(completions), node.value, variable)} ;;')
    return "\n".join(lines)


def _assignment(completions: tuple[str, ...], value: Value, variable: str) -> str:
    return f'{variable}="{" ".join(completions)}" files={"yes" if value.file else ""}'


def _fish(tree: list[CommandNode]) -> str:
    lines = [
        "function __headgate_at",
        "    set -l at ''",
        "    for word in (commandline -opc)[2..-1]",
        f"        if contains -- $at/$word {' '.join(node.path for node in tree if node.path)}",
        "            set at $at/$word",
        "        end",
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
        "complete -c headgate -f",
    ]
    for node in tree:
        prefix = f"complete -c headgate -n '__headgate_at \"{node.path}\"'"
        lines += [f"{prefix} -a {word} -d {_quoted(about)}" for word, about in node.commands]
        lines += [f"{prefix} -a {word}" for word in node.value.words]
        lines += [f"{prefix} -F"] * node.value.file
        for option in node.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
            )
            lines.append(f"{prefix} {names} -d {_quoted(option.about)}{_fish_value(option.value)}")
    return "\n".join(lines)


def _fish_value(value: Value | None) -> str:
    if value is None:
        return ""
    if value.file:
        return " -r -F"
    return f" -x -a {_quoted(' '.join(value.words))}" if value.words else " -x"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
