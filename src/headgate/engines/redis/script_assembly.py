"""Scripts, put together: a command with just the model files that it needs.

Every call of a script creates every function and table of it anew, which can cost Redis more than the decision
itself. So a take on one key carries one model, without the parts that only other commands use (they stand below
a line `--@refund` in the model's file), and flat: its functions become plain locals, no module table is made.
Only a mixed call carries several models, as modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from importlib.resources import files

_PACKAGE = files("headgate")
_COMMANDS = _PACKAGE / "lua" / "commands"
# A source tree has the models here, and nginx a link to them; a wheel has them once, where nginx finds them.
_MODELS = next(
    folder
    for folder in (
        _PACKAGE / "lua" / "algorithms",
        _PACKAGE / "nginx" / "lib" / "resty" / "headgate" / "algorithms",
    )
    if folder.is_dir()
)

# How each algorithm's state is kept. Whatever fits one string needs no line here.
_KEEPERS = {"sliding_log": "log_storage"}

# Commands that run so often that for a state in one string they are written out.
_WRITTEN_OUT = ("take", "take_many", "take_calls")


class Script:
    """A text that runs in the server, and the name under which the server knows it."""

    __slots__ = ("load", "sha", "text")

    def __init__(self, text: str) -> None:
        body = text.encode()
        self.text: str = text
        self.sha: str = sha1(body).hexdigest()
        self.load: bytes = b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%d\r\n%b\r\n" % (len(body), body)


@cache
def single(command: str, algorithm: str) -> Script:
    """A command on one key, for one algorithm."""
    commands = [_KEEPERS.get(algorithm, "string_storage"), command]
    if commands[0] == "string_storage" and command in _WRITTEN_OUT:
        commands = [f"{command}_string"]
    model = _for(command, _model(algorithm))
    parts = [_WRONG_VALUE, model, *(_command(name) for name in commands)]
    return Script("\n".join(_flat(part) for part in parts).replace("model.width", _width(model)))


def in_one_string(algorithm: str) -> bool:
    """Whether its state fits one: only then there is a `take_calls` for it."""
    return algorithm not in _KEEPERS


def several(command: str, algorithms: Iterable[str]) -> Script:
    """A command on several keys, for these algorithms."""
    return _several(command, tuple(sorted(set(algorithms))))


@cache
def _several(command: str, algorithms: tuple[str, ...]) -> Script:
    lines = [_flat(_WRONG_VALUE), "local models, keeps = {}, {}"]
    for name in algorithms:
        model = _for(command, _model(name))
        keeper = _command(_KEEPERS.get(name, "string_storage"))
        lines.append(f"models.{name} = (function()\n{model}\nend)()")
        lines.append(f"keeps.{name} = (function(model)\n{keeper}\nend)(models.{name})")
    return Script("\n".join([*lines, _command(command)]))


@cache
def bare(command: str, model: str | None = None) -> Script:
    """A command that keeps its state itself."""
    parts = [] if model is None else [_model(model)]
    return Script("\n".join(_flat(part) for part in (_WRONG_VALUE, *parts, _command(command))))


@cache
def published(name: str) -> Script:
    """What gateways call by its SHA1: a token bucket in a hash that somebody configured."""
    command = f"published_{name}"
    parts = (
        _WRONG_VALUE,
        _for(command, _model("token_bucket")),
        _model("decimal_rate"),
        _model("changed_bucket"),
        _command("hash_storage"),
        _command(command),
    )
    return Script("\n".join(_flat(part) for part in parts))


def _flat(source: str) -> str:
    """A module's functions as plain locals, and calls of them as plain calls."""
    source = re.sub(r"^function M\.", "local function ", source, flags=re.M)
    source = re.sub(r"^(local M = .*|return M)$", "", source, flags=re.M)
    return re.sub(r"\b(?:M|model|keep)\.(?!width)", "", source)


def _width(model: str) -> str:
    """How many numbers the model's limit has."""
    found = re.search(r"^local M = \{ width = (\d+)", model, flags=re.M)
    assert found is not None, "a model says how many numbers its limit has"
    return found[1]


def _for(command: str, source: str) -> str:
    """Without the parts that are marked for another command."""
    return re.sub(rf"^--@(?!{command}$)\w+\n(?:(?!--@|return M$).*\n?)*", "", source, flags=re.M)


def _command(name: str) -> str:
    return (_COMMANDS / f"{name}.lua").read_text(encoding="utf-8")


def _model(name: str) -> str:
    return (_MODELS / f"{name}.lua").read_text(encoding="utf-8")


_WRONG_VALUE = _command("wrong_value")  # every command answers by it
