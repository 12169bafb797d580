"""headgate lua: publishes and prints the scripts that run inside Redis and Valkey, and finds the Lua for nginx."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from headgate.algorithms import ALGORITHMS
from headgate.cli.command_parser import Commands, command, group
from headgate.cli.engine_option import add_engine, server_of
from headgate.cli.output import Output, warn
from headgate.cli.text_table import TextTable
from headgate.engines.redis.script_assembly import (
    Script,
    algorithm_script,
    fits_one_string,
    mixed_script,
    published_script,
    standalone_script,
)
from headgate.errors import InvalidRule
from headgate.gateway import lua_library

_CALL_SYNTAX = {
    "rate_limiter": (
        "init MAX_PERMITS RATE [TTL]     1: a bucket of MAX_PERMITS, refilled at RATE a second",
        "acquire N                       1: allowed, -1: refused",
        "delete                          1",
    ),
    "token_bucket": (
        "N     on a hash with bucket_cap and rate (or period).  1: allowed, 0: refused, -1: not configured",
    ),
}


_PUBLISH_AGAIN = "A restarted server has lost its scripts, and a new replica has none: then publish again."


def add(commands: Commands) -> None:
    verbs = group(
        commands, "lua", "publish or show the scripts that run inside Redis and Valkey; copy the Lua for nginx"
    )
    publish_parser = command(
        verbs,
        "publish",
        _publish,
        "load the scripts for gateways into a server and its replicas, and store their SHA1",
        "headgate lua publish --engine redis://host:6379/0",
        more=_PUBLISH_AGAIN,
    )
    add_engine(publish_parser, prefix=False)
    command(verbs, "list", _list, "list every script: name, size in bytes, SHA1", "headgate lua list")
    show_parser = command(
        verbs,
        "show",
        _show,
        "print the text of one script, as the server runs it",
        "headgate lua show take/token_bucket",
    )
    show_parser.add_argument("name", help="as headgate lua list names it")
    command(
        verbs,
        "path",
        _path,
        "print the value of lua_package_path with which nginx finds headgate's Lua",
        "headgate lua path",
        'sed -i "s|LUA_PATH|$(headgate lua path)|" nginx.conf',
    )
    copy_parser = command(
        verbs,
        "copy",
        _copy,
        "copy the Lua for nginx into a folder, for an image or a machine without Python",
        "headgate lua copy /usr/local/share/headgate",
    )
    copy_parser.add_argument("folder", metavar="DIR", help="created if it does not exist")


def _path(args: argparse.Namespace) -> Output:
    path = lua_library.package_path(lua_library.folder())
    return Output({"path": path}, [path])


def _copy(args: argparse.Namespace) -> Output:
    target = Path(args.folder).absolute()
    path = lua_library.package_path(target)
    files = lua_library.copy(target)
    message = f'{len(files)} files copied. In nginx.conf:  lua_package_path "{path};;";'
    return Output({"path": path, "files": [str(name) for name in files]}, [message])


def scripts() -> dict[str, Script]:
    """Returns every script by name: those for gateways, then those that the Redis engine itself runs."""
    by_name = {f"published/{name}": published_script(name) for name in _CALL_SYNTAX}
    for name, algorithm in ALGORITHMS.items():
        by_name[f"take/{name}"] = algorithm_script("take", name)
        by_name[f"take_many/{name}"] = algorithm_script("take_many", name)
        by_name[f"take_together/{name}"] = algorithm_script("take_together", name)
        if fits_one_string(name):
            by_name[f"take_calls/{name}"] = algorithm_script("take_calls", name)
        by_name[f"refund/{name}"] = algorithm_script("refund", name)
        if algorithm.retune is not None:
            by_name[f"retune/{name}"] = algorithm_script("retune", name)
    by_name["take_all"] = mixed_script("take_all", ALGORITHMS)
    by_name["take_all/lockout"] = mixed_script("take_all", (*ALGORITHMS, "lockout"))
    by_name["take_all/pause"] = mixed_script("take_all", (*ALGORITHMS, "pause"))
    by_name["pause"] = standalone_script("pause", pausable=True)
    by_name["slots"] = standalone_script("slots", "slots")
    by_name["membership"] = standalone_script("membership")
    by_name["rulebook_versions"] = standalone_script("rulebook_versions")
    by_name["quota_ledger"] = standalone_script("quota_ledger", "quota_grants")
    return by_name


def _list(args: argparse.Namespace) -> Output:
    by_name = scripts()
    sizes = {name: len(script.text.encode()) for name, script in by_name.items()}
    document = [{"name": name, "bytes": sizes[name], "sha1": script.sha} for name, script in by_name.items()]
    rows = [(name, sizes[name], script.sha) for name, script in by_name.items()]
    return Output({"scripts": document}, [TextTable(("script", "bytes", "sha1"), rows, right_aligned=("bytes",))])


def _show(args: argparse.Namespace) -> Output:
    by_name = scripts()
    if args.name not in by_name:
        matches = get_close_matches(args.name, by_name, 1, 0.4)
        hint = f"Did you mean {matches[0]}?" if matches else "See headgate lua list."
        raise InvalidRule(f'There is no script "{args.name}". {hint}')
    script = by_name[args.name]
    # Printing adds the newline again, so that the output has the script's SHA1.
    lines = [script.text.removesuffix("\n")]
    return Output({"name": args.name, "sha1": script.sha, "text": script.text}, lines)


def _publish(args: argparse.Namespace) -> Output:
    url, _ = server_of(args, "there is no server to publish to")
    # Imported here because the other commands run without the redis package.
    from headgate.engines.redis.published_scripts import publish

    published_scripts = publish(url, partial(warn, as_json=args.json))
    lines = []
    for script in published_scripts:
        lines.append(f"{script.key} = {script.sha}")
        lines += [f"    EVALSHA <sha> 1 <key> {call}" for call in _CALL_SYNTAX[script.name]]
    lines.append(_PUBLISH_AGAIN)
    return Output({"published": [script._asdict() for script in published_scripts]}, lines)
