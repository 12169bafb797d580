"""The errors between this process and a Redis server, and the sentences that tell users how to fix them.

RedisError
├── ConnectionLost       the connection failed after the request was sent: it may have been charged
│   └── ConnectFailed        ... before anything was sent: it was not charged
├── TimedOut             no reply in time: it may have been charged
└── ServerError          the server replied with an error, and has done nothing
    ├── NoScript             ... because the script is not loaded: NOSCRIPT
    ├── Redirected           ... because another node of the cluster owns the key: MOVED, ASK
    ├── ClusterBusy          ... because it cannot serve the key yet: TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN
    ├── ReadOnlyReplica      ... because it is a replica, and takes no writes
    └── WrongType            ... because a key holds a value that is not ours (lua/commands/wrong_value.lua)
"""

from __future__ import annotations

import re

from headgate.engines.redis.keys import LAYOUT
from headgate.errors import CorruptState, EngineUnavailable


class RedisError(Exception):
    """A request failed; if it was one of several, `key` names the one."""

    key: str | None = None


class ConnectionLost(RedisError):
    """The connection failed."""


class ConnectFailed(ConnectionLost):
    """No connection could be used: nothing was sent."""


class TimedOut(RedisError):
    """No reply in time."""


class ServerError(RedisError):
    """The server replied with an error."""


class NoScript(ServerError):
    """The script is not loaded: the server was restarted, or its scripts were flushed."""


class Redirected(ServerError):
    """Another node owns the key: permanently (MOVED), or for this request only (ASK)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        kind, slot, location = text.split()[:3]
        host, _, port = location.rpartition(":")
        self.is_temporary: bool = kind == "ASK"
        self.slot: int = int(slot)
        self.host: str = host.strip("?")  # empty: the host that replied
        self.port: int = int(port)


class ClusterBusy(ServerError):
    """The cluster or server cannot serve the key yet; try again soon."""


class ReadOnlyReplica(ServerError):
    """A replica takes no writes."""


class WrongType(ServerError):
    """A key holds a value that is not ours."""


_KINDS_BY_CODE: dict[str, type[ServerError]] = {
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


def parse_error_reply(text: str) -> ServerError:
    """Turns the text of an error reply into an exception."""
    kind = _KINDS_BY_CODE.get(text.partition(" ")[0], ServerError)
    # Inside a script Redis 7 replies "READONLY ...", Redis 6 "ERR ... -READONLY ...".
    if kind is ServerError and "-READONLY" in text:
        kind = ReadOnlyReplica
    try:
        return kind(text)
    except ValueError:  # a redirection that we cannot parse
        return ServerError(text)


def not_charged(error: RedisError) -> bool:
    """Returns whether the request can be sent again, here or elsewhere, without being charged twice."""
    return isinstance(error, NoScript | Redirected | ClusterBusy | ReadOnlyReplica | ConnectFailed)


def lacks_right(error: BaseException | None) -> bool:
    """Returns whether the server refused the request because its user may not make it."""
    return isinstance(error, ServerError) and _rights_pattern.search(str(error)) is not None


def denies_key(error: ServerError) -> bool:
    """Returns whether a right is missing that is about keys, and not about the command."""
    return _key_rights_pattern.search(str(error)) is not None


# The commands that scripts call; a server does not always say which of them it refused.
SCRIPT_COMMANDS = (
    *("time", "get", "set", "del", "getrange", "setrange", "pexpire", "pexpireat", "pttl"),
    *("zadd", "zrem", "zscore", "zcount", "zrangebyscore", "zrevrange", "zincrby"),
)

_NO_DECISION = " gave no decision: "
_command_pattern = re.compile(r"to run the '([^']+)'|run the '?([\w|]+)'? command", re.I)
_key_rights_pattern = re.compile(r"access (at least )?(one of the keys|the key|a key)|key.* mentioned", re.I)
_rights_pattern = re.compile(r"NOPERM|ACL failure|no permission|can't (run|access)", re.I)
_cluster_node_pattern = re.compile(r"^(MOVED|ASK|CROSSSLOT|CLUSTERDOWN) ")
_no_cluster_pattern = re.compile(r"cluster support disabled")
_no_tls_pattern = re.compile(
    r"did not take the connection in time|did not open in time|wrong.version|record.layer", re.I
)
_login_pattern = re.compile(r"WRONGPASS|NOAUTH|invalid username-password|Authentication", re.I)


def engine_failure(
    where: str, prefix: str, error: RedisError, other_url: str | None = None, without_tls: str | None = None
) -> EngineUnavailable | CorruptState:
    """Returns the exception for the engine's user; the caller chains the cause.

    `other_url` is the URL to write if the server turns out to be a node of a cluster, or to be none; `without_tls`
    if it never finished a TLS handshake.
    """
    if isinstance(error, WrongType):
        return CorruptState(f"Redis at {where}{_NO_DECISION}{_wrong_value_reason(str(error))}")
    unavailable = EngineUnavailable(
        f"Redis at {where}{_NO_DECISION}{_reason(prefix, error, other_url, without_tls)}"
    )
    unavailable.key = error.key
    return unavailable


def reason_of(error: Exception) -> str:
    """Returns why the server gave no answer, without its address: for a line that names it already.

    >>> reason_of(EngineUnavailable("Redis at h:6379 gave no decision: the connection failed (refused)."))
    'the connection failed (refused)'
    """
    text = str(error)
    return (text.partition(_NO_DECISION)[2] or text).removesuffix(".")


def wrong_value_error(key: bytes) -> WrongType:
    """Returns the error for a key that holds a value that is not ours, where no script has reported it."""
    name = key.decode(errors="replace")
    return WrongType(
        f"{_WRONG_VALUE_PREFIX}the key {name} holds a value that headgate did not write. Nothing was changed. "
        "Delete or move it, or choose another key or prefix."
    )


_WRONG_VALUE_PREFIX = "WRONGTYPE headgate: "


def _wrong_value_reason(text: str) -> str:
    if text.startswith(_WRONG_VALUE_PREFIX):
        # Servers append where the error was raised.
        return text.removeprefix(_WRONG_VALUE_PREFIX).partition(" script: ")[0]
    return f"a key under our prefix holds a value that headgate did not write ({text}). Choose another prefix."


def _reason(prefix: str, error: RedisError, other_url: str | None, without_tls: str | None) -> str:
    text = str(error).strip()
    if without_tls and (isinstance(error, TimedOut) or _no_tls_pattern.search(text)):
        return (
            f"it finished no TLS handshake ({text}), and may not speak TLS. Write {without_tls} if it is to be "
            "reached without TLS."
        )
    if isinstance(error, TimedOut):
        return f"no answer within the timeout ({text})."
    if _login_pattern.search(text):
        return f"it refused the user or the password ({text}). Correct them in the engine's URL."
    if _rights_pattern.search(text):
        return _missing_right(prefix, text)
    if other_url and (_cluster_node_pattern if "+cluster:" in other_url else _no_cluster_pattern).search(text):
        what = "a node of a cluster" if "+cluster:" in other_url else "no cluster"
        return f"it is {what} ({text}). Write {other_url} as the engine's URL."
    if isinstance(error, ConnectionLost):
        return f"the connection failed ({text})."
    if isinstance(error, ReadOnlyReplica):
        return "it is a replica and takes no writes. Name the master in the engine's URL."
    return f"it answered with an error ({text})."


def _missing_right(prefix: str, text: str) -> str:
    if _key_rights_pattern.search(text):
        return f"its user may not touch our keys ({text}). Grant them: ACL SETUSER <user> ~{prefix}{LAYOUT}:*"
    match = _command_pattern.search(text)
    missing = ((match[1] or match[2]).lower(),) if match else SCRIPT_COMMANDS
    which = missing[0] if match else "a command of our scripts"
    grant = " ".join(f"+{command}" for command in missing)
    return f"its user lacks the right to run {which} ({text}). Grant it: ACL SETUSER <user> {grant}"
