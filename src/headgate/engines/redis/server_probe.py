"""Probes one server: its version, role, rights, memory settings, clock and round trips. Changes no count.

HELLO needs no right, so version, mode and role are known for every user. A right is probed by a request that
changes nothing: on a key that does not exist, or with an argument that the command refuses. Servers check rights
before arguments, slots and roles, so any reply but NOPERM means that the right is there. What stops all writes
(OOM, MISCONF, NOREPLICAS) and all commands (LOADING, BUSY) is checked before arguments as well.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.algorithms.limit import SECOND
from headgate.engines.redis.errors import RedisError, ServerError, denies_key, lacks_right
from headgate.engines.redis.keys import LAYOUT
from headgate.engines.redis.protocol import command
from headgate.engines.redis.script_assembly import algorithm_script
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.sync_connection import SyncConnection
from headgate.engines.redis.sync_engine import RedisEngine

ROUND_TRIPS = 20
INFO_SECTIONS = ("server", "memory", "stats", "replication")

# Replies of a server that decides nothing as it is, whatever the user may do.
_REFUSALS = (
    *("OOM", "MISCONF", "NOREPLICAS", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN"),
    "ERR DB index is out of range",
)

_NO_SHA = "0" * 40
_version = re.compile(r"(\d+)\.(\d+)")

# The arguments behind the key, by which each command changes nothing.
_KEY_PROBES: Mapping[str, tuple[str | int, ...]] = {
    "unlink": (),
    "get": (),
    "set": ("1", "neither-nx-nor-xx"),
    "del": (),
    "getrange": (0, 0),
    "setrange": (0, ""),
    "pexpire": (1000,),
    "pexpireat": (1000,),
    "pttl": (),
    "zadd": ("no-number", "member"),
    "zrem": ("member",),
    "zscore": ("member",),
    "zcount": (0, 0),
    "zrangebyscore": (0, 0),
    "zrevrange": (0, 0),
    "zincrby": ("no-number", "member"),
}


class ServerStatus(NamedTuple):
    """The facts that a server reported about itself; None where it reported nothing.

    version          its product and number: ("Redis", "7.0.15")
    mode             standalone, cluster or sentinel
    role             master or replica
    info             fields of INFO; None if the user may not read them
    missing_rights   commands that the user may not run; keys_denied: whether it may not touch our keys
    refusal          the reply to all writes, such as OOM or MISCONF, or to the database of the URL
    script_error     why no script could be loaded
    clock_ahead_us   how far the server's clock is ahead of this machine's, and by how much that may be wrong
    round_trips_us   how long round trips took, sorted
    """

    address: ServerAddress
    version: tuple[str, str] | None = None
    mode: str | None = None
    role: str | None = None
    info: Mapping[str, str] | None = None
    missing_rights: tuple[str, ...] = ()
    keys_denied: bool = False
    refusal: str | None = None
    script_error: str | None = None
    clock_ahead_us: tuple[int, int] | None = None
    round_trips_us: tuple[int, ...] = ()

    @property
    def user(self) -> str:
        """The user of the URL."""
        return self.address.login[0] if len(self.address.login) == 2 else "default"

    @property
    def version_numbers(self) -> tuple[int, int] | None:
        """The first two numbers of the version."""
        found = None if self.version is None else _version.match(self.version[1])
        return None if found is None else (int(found[1]), int(found[2]))


def probe_servers(engine: RedisEngine) -> list[ServerStatus]:
    """Probes the server of an engine, or every master of its cluster; EngineUnavailable says why one cannot be."""
    try:
        engine.discover()
        return [probe_server(address, engine.prefix, engine.deadline) for address in engine.topology.masters]
    except RedisError as error:
        raise engine.failure(error) from error


def probe_server(address: ServerAddress, prefix: str, timeout: float) -> ServerStatus:
    """Probes one server; raises RedisError if it cannot be reached or refuses the login."""
    # Connected to database 0: SELECT is one of the rights that are probed.
    with closing(SyncConnection(replace(address, db=0), timeout, timeout)) as connection:
        greeting = _execute(connection, "HELLO")
        round_trips, clock_ahead_us = _measure(connection)
        info = _info(connection)
        missing, keys_denied, refusal = _probe_rights(connection, address, prefix)
        script_error = None if "script|load" in missing else _script_error(connection)
    hello = {} if isinstance(greeting, ServerError) else _pairs(greeting)
    return ServerStatus(
        address,
        _version_of(hello, info),
        hello.get("mode") or (info or {}).get("redis_mode"),
        hello.get("role") or {"slave": "replica"}.get(role := (info or {}).get("role", ""), role) or None,
        info,
        missing,
        keys_denied,
        refusal,
        script_error,
        clock_ahead_us,
        round_trips,
    )


def _execute(connection: SyncConnection, *words: str | bytes | int) -> Any:
    """Sends a command, and returns the reply or the error that the server replied with."""
    return _send(connection, command(*words))


def _send(connection: SyncConnection, packed: bytes) -> Any:
    try:
        return connection.exchange(packed, time.monotonic() + connection.timeout)
    except ServerError as error:
        if "NOAUTH" in str(error):
            raise
        return error


def _pairs(reply: Sequence[Any]) -> dict[str, str]:
    """Returns the texts of a flat list of names and values."""
    return {
        name.decode(): value.decode()
        for name, value in zip(reply[::2], reply[1::2], strict=False)
        if isinstance(name, bytes) and isinstance(value, bytes)
    }


def _info(connection: SyncConnection) -> dict[str, str] | None:
    fields: dict[str, str] = {}
    for section in INFO_SECTIONS:
        reply = _execute(connection, "INFO", section)
        if not isinstance(reply, bytes):
            return None
        lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
        fields.update({name: value for name, colon, value in lines if colon})
    return fields


def _version_of(hello: Mapping[str, str], info: Mapping[str, str] | None) -> tuple[str, str] | None:
    info = info or {}
    if "valkey_version" in info or hello.get("server") == "valkey":
        return "Valkey", info.get("valkey_version") or hello["version"]
    number = hello.get("version") or info.get("redis_version")
    return None if number is None else ("Redis", number)


def _measure(connection: SyncConnection) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Returns the round trips of TIME, sorted, and how far the server's clock is ahead, by the shortest."""
    taken: list[tuple[int, int]] = []
    for _ in range(ROUND_TRIPS):
        before_us, started_ns = time.time_ns() // 1000, time.perf_counter_ns()
        reply = _execute(connection, "TIME")
        spent_us = (time.perf_counter_ns() - started_ns) // 1000
        if isinstance(reply, ServerError):
            return (), None
        server_us = int(reply[0]) * SECOND + int(reply[1])
        taken.append((spent_us, server_us - before_us - spent_us // 2))
    spent_us, ahead_us = min(taken)
    return tuple(sorted(spent for spent, _ in taken)), (ahead_us, spent_us // 2 + 1)


def _probe_rights(
    connection: SyncConnection, address: ServerAddress, prefix: str
) -> tuple[tuple[str, ...], bool, str | None]:
    """Returns the commands that the user may not run, whether it may not touch our keys, and the reply by which
    the server refuses every decision."""
    key = f"{prefix}{LAYOUT}:tb:headgate-doctor:{{headgate-doctor}}"
    probes: dict[str, tuple[str | int, ...]] = {
        **({"select": ("SELECT", address.db)} if address.db else {}),
        "evalsha": ("EVALSHA", _NO_SHA, 1, key),
        "script|load": ("SCRIPT", "LOAD", "return 1"),
        "time": ("TIME",),
        **{name: (name.upper(), key, *args) for name, args in _KEY_PROBES.items()},
    }
    missing, keys_denied, refusal = [], False, None
    for name, words in probes.items():
        reply = _execute(connection, *words)
        if isinstance(reply, ServerError) and lacks_right(reply):
            if denies_key(reply):
                keys_denied = True
            else:
                missing.append(name)
        elif isinstance(reply, ServerError) and str(reply).startswith(_REFUSALS):
            refusal = refusal or str(reply)
    return tuple(missing), keys_denied, refusal


def _script_error(connection: SyncConnection) -> str | None:
    """Loads the script of a decision; returns why that failed."""
    script = algorithm_script("take", "token_bucket")
    reply = _send(connection, script.load)
    if isinstance(reply, ServerError):
        return str(reply)
    return None if reply == script.sha.encode() else "it calculated another SHA1 of the script"
