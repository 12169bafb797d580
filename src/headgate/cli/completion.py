"""headgate completion: what a shell needs to know to finish the words of a command line.

It is read off the parsers themselves, so a command that exists can be completed, and one that does not cannot.
Every shell gets the same three facts about each place in the tree: the words that may follow, the options, and
what each option is followed by.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headgate.cli.output import Output
from headgate.cli.parser import Commands, Parser, command

SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "OLD", "NEW", "PLATE", "RULEBOOK", "DIR")  # metavars behind which a file stands


class Value(NamedTuple):
    """What an argument may be: one of some words, a file, or (neither) anything."""

    words: tuple[str, ...] = ()
    file: bool = False


class Option(NamedTuple):
    names: tuple[str, ...]
    about: str
    value: Value | None  # None: it stands alone


class Place(NamedTuple):
    """Somewhere in the tree: /rules/push, after the words `rules push`."""

    path: str
    commands: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    value: Value


def add(commands: Commands, tree: Callable[[], Parser]) -> None:
    parser = command(
        commands,
        "completion",
        lambda args: _answer(args, tree()),
        "a script that completes the words of headgate in a shell",
        'eval "$(headgate completion bash)"',
        "headgate completion fish > ~/.config/fish/completions/headgate.fish",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def _answer(args: argparse.Namespace, tree: Parser) -> Output:
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    script = scripts[args.shell](list(places(tree)))
    return Output({"shell": args.shell, "script": script}, [script])


def places(parser: argparse.ArgumentParser, path: str = "") -> Iterator[Place]:
    """Every place of the tree, from its root."""
    commands: list[tuple[str, str]] = []
    options, value, below = [], Value(), []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands += [(choice.dest, choice.help or "") for choice in action._choices_actions]
            below += [places(each, f"{path}/{word}") for word, each in action.choices.items()]
        elif action.option_strings:
            stands_alone = action.nargs == 0
            options.append(
                Option(tuple(action.option_strings), action.help or "", None if stands_alone else _value(action))
            )
        else:
            value = Value(value.words + _value(action).words, value.file or _value(action).file)
    yield Place(path, tuple(commands), tuple(options), value)
    for each in below:
        yield from each


def _value(action: argparse.Action) -> Value:
    return Value(tuple(map(str, action.choices or ())), action.metavar in _FILES)


def _bash(tree: list[Place]) -> str:
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
{_by_place(tree, "words")}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [ -n "$files" ]; then COMPREPLY+=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _headgate headgate"""


def _zsh(tree: list[Place]) -> str:
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
{_by_place(tree, "known")}
        esac ;;
    esac
    compadd -- ${{=known}}
    if [ -n "$files" ]; then _files; fi
}}
compdef _headgate headgate"""


def _paths(tree: list[Place]) -> str:
    return "|".join(place.path for place in tree if place.path)


def _by_option(tree: list[Place], words: str) -> str:
    lines = []
    for place in tree:
        for option in place.options:
            if option.value is not None:
                named = "|".join(f'"{place.path} {name}"' for name in option.names)
                lines.append(f"        {named}) {_assigned(option.value.words, option.value, words)} ;;")
    return "\n".join(lines)


def _by_place(tree: list[Place], words: str) -> str:
    lines = []
    for place in tree:
        known = [word for word, _ in place.commands] + list(place.value.words)
        known += [name for option in place.options for name in option.names]
        lines.append(f'            "{place.path}") {_assigned(tuple(known), place.value, words)} ;;')
    return "\n".join(lines)


def _assigned(known: tuple[str, ...], value: Value, words: str) -> str:
    return f'{words}="{" ".join(known)}" files={"yes" if value.file else ""}'


def _fish(tree: list[Place]) -> str:
    lines = [
        "function __headgate_at",
        "    set -l at ''",
        "    for word in (commandline -opc)[2..-1]",
        f"        if contains -- $at/$word {' '.join(place.path for place in tree if place.path)}",
        "            set at $at/$word",
        "        end",
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
        "complete -c headgate -f",
    ]
    for place in tree:
        here = f"complete -c headgate -n '__headgate_at \"{place.path}\"'"
        lines += [f"{here} -a {word} -d {_quoted(about)}" for word, about in place.commands]
        lines += [f"{here} -a {word}" for word in place.value.words]
        lines += [f"{here} -F"] * place.value.file
        for option in place.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
            )
            lines.append(f"{here} {names} -d {_quoted(option.about)}{_followed(option.value)}")
    return "\n".join(lines)


def _followed(value: Value | None) -> str:
    if value is None:
        return ""
    if value.file:
        return " -r -F"
    return f" -x -a {_quoted(' '.join(value.words))}" if value.words else " -x"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
