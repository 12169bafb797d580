"""Assembles scripts: a command with just the model files that it needs.

Every call of a script creates all of its functions and tables anew, which can cost Redis more than the decision
itself. So a take on one key carries one model, without the parts that only others use (below a line `--@refund` or
`--@gateway` in the model's file), and inlined: its functions become plain locals, without a module table. Only a
call of several algorithms carries several models, as modules.
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


class Script:
    """A Lua script, and the SHA1 under which the server finds it."""

    __slots__ = ("load", "sha", "text")

    def __init__(self, text: str) -> None:
        body = text.encode()
        self.text: str = text
        self.sha: str = sha1(body).hexdigest()
        self.load: bytes = b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%d\r\n%b\r\n" % (len(body), body)


@cache
def algorithm_script(command: str, algorithm: str, pausable: bool = False) -> Script:
    """Assembles a command on keys of one algorithm; with `pausable` on keys that can be paused."""
    assert command != "take_calls" or fits_one_string(algorithm), "take_calls reads states that fit one string"
    model = _without_other_commands(command, _model_source(algorithm))
    sources = (_WRONG_VALUE, model, _storage_source(model), _command_source(command))
    text = _joined(sources, pausable)
    constants = {
        "width": _limit_width(model),
        "has_edges": str("has_edges = true" in model).lower(),
        "fits_one_string": str(_storage(model) == "string").lower(),
    }
    for name, value in constants.items():
        text = text.replace(f"model.{name}", value)
    return Script(text)


def fits_one_string(algorithm: str) -> bool:
    """Returns whether the algorithm's state fits one string: only then it has a `take_calls`."""
    return _storage(_model_source(algorithm)) == "string"


def mixed_script(command: str, algorithms: Iterable[str]) -> Script:
    """Assembles a command on several keys, for these algorithms."""
    return _mixed(command, tuple(sorted(set(algorithms))))


@cache
def _mixed(command: str, algorithms: tuple[str, ...]) -> Script:
    lines = [_inline_module(_WRONG_VALUE), "local models, storages = {}, {}"]
    if "pause" in algorithms:
        lines += _pause_sources()
        algorithms = tuple(name for name in algorithms if name != "pause")
    for name in algorithms:
        model = _without_other_commands(command, _model_source(name))
        lines.append(f"models.{name} = (function()\n{model}\nend)()")
        lines.append(f"storages.{name} = (function(model)\n{_storage_source(model)}\nend)(models.{name})")
    return Script("\n".join([*lines, _command_source(command)]))


@cache
def standalone_script(command: str, model: str | None = None, pausable: bool = False) -> Script:
    """Assembles a command that stores its state itself; with `pausable` on keys that can be paused."""
    models = [] if model is None else [_without_other_commands(command, _model_source(model))]
    sources = (_WRONG_VALUE, *models, _command_source(command))
    return Script(_joined(sources, pausable))


@cache
def published_script(name: str) -> Script:
    """Assembles a script that gateways call by its SHA1: a token bucket configured by a hash."""
    command = f"published_{name}"
    sources = (
        _WRONG_VALUE,
        _without_other_commands(command, _model_source("token_bucket")),
        _model_source("decimal_rate"),
        _model_source("convert_token_bucket"),
        _command_source("hash_storage"),
        _command_source(command),
    )
    return Script("\n".join(_inline_module(source) for source in sources))


def _pause_sources() -> list[str]:
    """Returns the model of pauses as a module, and the functions that load one, for scripts that need them."""
    model = f"local pause = (function()\n{_model_source('pause')}\nend)()"
    return [model, _inline_module(_command_source("pause_storage"))]


def _joined(sources: Iterable[str], pausable: bool) -> str:
    """Joins the sources of a script, all of them inlined: wrong_value first, then pauses if it needs them."""
    first, *others = map(_inline_module, sources)
    return "\n".join([first, *(_pause_sources() if pausable else ()), *others])


def _inline_module(source: str) -> str:
    """Turns a module's functions into plain locals, and calls of them into plain calls."""
    source = re.sub(r"^function M\.", "local function ", source, flags=re.M)
    source = re.sub(r"^(local M = .*|return M)$", "", source, flags=re.M)
    return re.sub(r"(?<![\w/])(?:M|model|storage)\.(?!width|has_edges|fits_one_string)", "", source)


def _limit_width(model: str) -> str:
    """Returns how many numbers the model's limit has."""
    match = re.search(r"^local M = \{ width = (\d+)", model, flags=re.M)
    assert match is not None, "a model says how many numbers its limit has"
    return match[1]


def _storage(model: str) -> str:
    """Returns how the model's state is stored: as a string, unless the model names another storage."""
    match = re.search(r'^local M = \{.* keep = "(\w+)"', model, flags=re.M)
    return "string" if match is None else match[1]


def _storage_source(model: str) -> str:
    return _command_source(f"{_storage(model)}_storage")


def _without_other_commands(command: str, source: str) -> str:
    """Removes the parts that are marked for another command."""
    return re.sub(rf"^--@(?!{command}$)\w+\n(?:(?!--@|return M$).*\n?)*", "", source, flags=re.M)


def _command_source(name: str) -> str:
    return (_COMMANDS / f"{name}.lua").read_text(encoding="utf-8")


def _model_source(name: str) -> str:
    return (_MODELS / f"{name}.lua").read_text(encoding="utf-8")


_WRONG_VALUE = _command_source("wrong_value")  # part of every script
