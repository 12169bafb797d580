"""What can go wrong between here and the server, as sentences to whoever can fix it.

Trouble
├── Lost           the connection failed after the question was sent: it may have been charged
│   └── Unreached      ... before anything was sent: it was not
├── Late           no reply in time: it may have been charged
└── Said           the server answered with an error, and has done nothing
    ├── Forgot         ... because it does not know the script any more
    ├── Elsewhere      ... because another node of the cluster answers for the key: MOVED, ASK
    ├── ClusterBusy         ... because the cluster is busy with itself: TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN
    ├── Replica        ... because it is a replica, and takes no writes
    └── WrongType      ... because a key holds a value that is not ours (lua/commands/wrong_value.lua)
"""

from __future__ import annotations

import re

from headgate.engines.redis.keys import LAYOUT
from headgate.errors import CorruptState, EngineUnavailable


class RedisError(Exception):
    """A question that got no answer; if it was one of several, `key` says whose."""

    key: str | None = None


class ConnectionLost(RedisError):
    """The connection failed."""


class ConnectFailed(ConnectionLost):
    """There was no connection to ask on: nothing was sent."""


class TimedOut(RedisError):
    """No reply in time."""


class ServerError(RedisError):
    """The server's own words for no."""


class NoScript(ServerError):
    """The server does not know the script: it was restarted, or its scripts were flushed."""


class Redirected(ServerError):
    """Another node answers for the key: for good (MOVED), or for this question only (ASK)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        kind, slot, place = text.split()[:3]
        host, _, port = place.rpartition(":")
        self.for_now: bool = kind == "ASK"
        self.slot: int = int(slot)
        self.host: str = host.strip("?")  # empty: the node that said so
        self.port: int = int(port)


class ClusterBusy(ServerError):
    """The cluster is busy with itself; soon it will not be."""


class ReadOnlyReplica(ServerError):
    """A replica takes no writes."""


class WrongType(ServerError):
    """A key holds a value that is not ours."""


_KINDS: dict[str, type[ServerError]] = {
    "NOSCRIPT": NoScript,
    "MOVED": Redirected,
    "ASK": Redirected,
    "TRYAGAIN": ClusterBusy,
    "CLUSTERDOWN": ClusterBusy,
    "LOADING": ClusterBusy,
    "MASTERDOWN": ClusterBusy,
    "READONLY": ReadOnlyReplica,
    "WRONGTYPE": WrongType,
}


def said(text: str) -> ServerError:
    """An error reply, as an exception."""
    kind = _KINDS.get(text.partition(" ")[0], ServerError)
    # Inside a script the word comes later: Redis 7 says "READONLY ...", Redis 6 "ERR ... -READONLY ...".
    if kind is ServerError and "-READONLY" in text:
        kind = ReadOnlyReplica
    try:
        return kind(text)
    except ValueError:  # it says where, but not in words that we know
        return ServerError(text)


def not_charged(trouble: RedisError) -> bool:
    """Whether asking again, here or elsewhere, may help and cannot charge twice."""
    return isinstance(trouble, NoScript | Redirected | ClusterBusy | ReadOnlyReplica | ConnectFailed)


# What the scripts call; a server does not always say which of them it refused.
IN_SCRIPTS = (
    *("time", "get", "mget", "set", "del", "getrange", "setrange", "pexpire", "pexpireat"),
    *("zadd", "zrem", "zscore", "zcount", "zrangebyscore", "zrevrange", "zincrby"),
)

_command = re.compile(r"to run the '([^']+)'|run the '?([\w|]+)'? command", re.I)
_keys = re.compile(r"access (at least )?(one of the keys|the key|a key)|key.* mentioned", re.I)
_rights = re.compile(r"NOPERM|ACL failure|no permission|can't (run|access)", re.I)
_one_of_many = re.compile(r"^(MOVED|ASK|CROSSSLOT|CLUSTERDOWN) ")
_no_cluster = re.compile(r"cluster support disabled")
_no_tls = re.compile(r"did not take the connection in time|did not open in time|wrong.version|record.layer", re.I)
_login = re.compile(r"WRONGPASS|NOAUTH|invalid username-password|Authentication", re.I)


def failure(
    where: str, prefix: str, trouble: RedisError, instead: str | None = None, without_tls: str | None = None
) -> EngineUnavailable | CorruptState:
    """The engine's failure, told; the cause is chained by the caller. `instead` is the URL to write if the server
    says that it is a node of a cluster, or is none; `without_tls` if it never finished a handshake."""
    if isinstance(trouble, WrongType):
        return CorruptState(f"Redis at {where} gave no decision: {_not_ours(str(trouble))}")
    error = EngineUnavailable(f"Redis at {where} gave no decision: {_why(prefix, trouble, instead, without_tls)}")
    error.key = trouble.key
    return error


def not_ours(key: bytes) -> WrongType:
    """That a key holds a value that is not ours, where no script has said so."""
    name = key.decode(errors="replace")
    return WrongType(
        f"{_NOT_OURS}the key {name} holds a value that headgate did not write. Nothing was changed. Delete or "
        "move it, or choose another key or prefix."
    )


_NOT_OURS = "WRONGTYPE headgate: "


def _not_ours(text: str) -> str:
    if text.startswith(_NOT_OURS):
        return text.removeprefix(_NOT_OURS).partition(" script: ")[0]  # a server adds where an error was raised
    return f"a key under our prefix holds a value that headgate did not write ({text}). Choose another prefix."


def _why(prefix: str, trouble: RedisError, instead: str | None, without_tls: str | None) -> str:
    text = str(trouble).strip()
    if without_tls and (isinstance(trouble, TimedOut) or _no_tls.search(text)):
        return (
            f"it finished no TLS handshake ({text}), and may not speak TLS. Write {without_tls} if it is to be "
            "reached without TLS."
        )
    if isinstance(trouble, TimedOut):
        return f"no answer within the timeout ({text})."
    if _login.search(text):
        return f"it refused the user or the password ({text}). Correct them in the engine's URL."
    if _rights.search(text):
        return _right(prefix, text)
    if instead and (_one_of_many if "+cluster:" in instead else _no_cluster).search(text):
        what = "a node of a cluster" if "+cluster:" in instead else "no cluster"
        return f"it is {what} ({text}). Write {instead} as the engine's URL."
    if isinstance(trouble, ConnectionLost):
        return f"the connection failed ({text})."
    if isinstance(trouble, ReadOnlyReplica):
        return "it is a replica and takes no writes. Name the master in the engine's URL."
    return f"it answered with an error ({text})."


def _right(prefix: str, text: str) -> str:
    if _keys.search(text):
        return f"its user may not touch our keys ({text}). Grant them: ACL SETUSER <user> ~{prefix}{LAYOUT}:*"
    found = _command.search(text)
    missing = ((found[1] or found[2]).lower(),) if found else IN_SCRIPTS
    which = missing[0] if found else "a command of our scripts"
    grant = " ".join(f"+{command}" for command in missing)
    return f"its user lacks the right to run {which} ({text}). Grant it: ACL SETUSER <user> {grant}"
