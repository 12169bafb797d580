"""Maps a key to the server that owns it: the only server, the master that sentinels name, or a node of a cluster.

A topology only stores the map; it sends nothing by itself. `discover` is a flow that refreshes the map, and
`execute` sends its requests. The map may be out of date: a server that does not own a key replies so and has
done nothing, and the request is sent on. So nothing here needs a lock.
"""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from headgate.engines.redis.errors import ConnectFailed, Redirected, RedisError
from headgate.engines.redis.protocol import command
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.url_schemes import (
    URL_EXAMPLES,
    authority_end,
    check_hosts_and_path,
    cluster_database_error,
    kind_of,
    scheme_of,
    unreadable_url,
)
from headgate.errors import InvalidRule
from headgate.flow import Flow

Execute = Callable[[ServerAddress, bytes], Any]

SLOT_COUNT = 16_384
REDISCOVER_AFTER_S = 0.1  # between two discoveries of a cluster that seems to have changed

_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix", "valkey+unix": "unix"}


class Topology(Protocol):
    """The map from keys to servers, as far as it is known."""

    text: str
    any_keys_together: bool  # whether one script call may use any keys
    can_fail_over: bool  # whether another server may replace one that fails

    def node(self, tag: bytes) -> ServerAddress | None:
        """Returns the server that owns the key with this hash tag; None: run `discover` first."""

    def owner(self, tag: bytes) -> ServerAddress | None:
        """Returns the last known owner, even if the map may be out of date."""

    @property
    def other_url(self) -> str | None:
        """The URL to write if the server turns out to be a node of a cluster, or to be none."""

    @property
    def without_tls(self) -> str | None:
        """The URL to write if the server turns out not to speak TLS, as far as that can be known."""

    @property
    def servers(self) -> Sequence[ServerAddress]:
        """All known servers that own keys, or would after a failover."""

    @property
    def masters(self) -> Sequence[ServerAddress]:
        """The servers that own keys now."""

    def discover(self, execute: Execute) -> Flow[None]: ...
    def follow_redirect(self, redirect: Redirected, source: ServerAddress) -> ServerAddress: ...
    def suspect(self, address: ServerAddress) -> None: ...


def topology(url: str) -> Topology:
    """Parses an engine's URL. Options for redis-py are still in it; ours have been removed."""
    scheme = scheme_of(url)
    kind = kind_of(scheme)
    rest = url.partition("://")[2]
    base = scheme.partition("+")[0] if kind in ("cluster", "sentinel") else scheme
    base_scheme = f"{_SCHEMES.get(base, base)}://"
    if "#" in url or "@" in url.partition("?")[2]:
        raise unreadable_url(scheme)
    check_hosts_and_path(url)
    try:
        if kind in ("one", "unix"):
            return SingleServer(ServerAddress.parse(base_scheme + rest))
        hosts, address, path, options = _parse_hosts(base_scheme, rest, 6379 if kind == "cluster" else 26379)
    except (ValueError, OSError) as error:
        # The text of the error may hold the password, unless it is about a file.
        raise unreadable_url(scheme, f" ({error})" if isinstance(error, OSError) else "") from None
    if kind == "cluster":
        if address.db:
            raise cluster_database_error(scheme)
        return ClusterTopology([address.at(*host) for host in hosts])
    name, _, db = path.strip("/").partition("/")
    if not name or not (db or "0").isdecimal():
        raise InvalidRule(f"Which master? Write {scheme}://{URL_EXAMPLES[kind]}.")
    sentinel_login = tuple(
        options[f"sentinel_{word}"] for word in ("username", "password") if f"sentinel_{word}" in options
    )
    master = replace(address, db=int(options.get("db", db) or 0))
    sentinels = [ServerAddress(host, port, None, address.tls, sentinel_login) for host, port in hosts]
    return SentinelTopology(sentinels, unquote(name), master)


def _parse_hosts(
    base_scheme: str, rest: str, port: int
) -> tuple[list[tuple[str, int]], ServerAddress, str, dict[str, str]]:
    """Parses a URL with several hosts: the hosts, how to log in to them, its path, and its options."""
    hosts_end = authority_end(rest)
    login, at, host_list = rest[:hosts_end].rpartition("@")
    tail = urlsplit(f"{base_scheme}localhost{rest[hosts_end:]}")
    hosts = [urlsplit(f"//{host_text}") for host_text in host_list.split(",")]
    options = dict(parse_qsl(tail.query))
    query = urlencode({name: value for name, value in options.items() if not name.startswith("sentinel_")})
    db = tail.path if tail.path.strip("/").isdigit() else ""
    address = ServerAddress.parse(f"{base_scheme}{login}{at}localhost{db}?{query}")
    return [(host.hostname or "", host.port or port) for host in hosts], address, tail.path, options


class SingleServer:
    """A single server, which owns all keys."""

    any_keys_together = True
    can_fail_over = False

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self.text: str = address.text
        self.other_url: str = address.url("+cluster")

    @property
    def without_tls(self) -> str | None:
        return self._address.without_tls

    def node(self, tag: bytes) -> ServerAddress | None:
        return self._address

    def owner(self, tag: bytes) -> ServerAddress | None:
        return self._address

    @property
    def servers(self) -> Sequence[ServerAddress]:
        return [self._address]

    masters = servers

    def discover(self, execute: Execute) -> Flow[None]:
        yield from ()

    def follow_redirect(self, redirect: Redirected, source: ServerAddress) -> ServerAddress:
        raise redirect

    def suspect(self, address: ServerAddress) -> None:
        """Does nothing: there is no other server."""


class SentinelTopology:
    """The master of a name, as the sentinels report it."""

    any_keys_together = True
    can_fail_over = True
    other_url = None
    without_tls = None  # a failure does not say which server it was

    def __init__(self, sentinels: Sequence[ServerAddress], name: str, address: ServerAddress) -> None:
        self._sentinels = list(sentinels)
        self._name = name
        self._template = address
        self._master: ServerAddress | None = None
        self.text: str = f"{name} of {', '.join(map(str, sentinels))}"

    def node(self, tag: bytes) -> ServerAddress | None:
        return self._master

    def owner(self, tag: bytes) -> ServerAddress | None:
        return self._master

    @property
    def servers(self) -> Sequence[ServerAddress]:
        return [] if self._master is None else [self._master]

    masters = servers

    def discover(self, execute: Execute) -> Flow[None]:
        packed = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        empty_reply = f'it knows no master called "{self._name}"'
        (host, port), sentinel, _ = yield from _first_reply(
            execute, self._sentinels, packed, "sentinel", empty_reply
        )
        self._master = self._template.at(host.decode(), int(port))
        self._sentinels = [sentinel, *(other for other in self._sentinels if other is not sentinel)]

    def follow_redirect(self, redirect: Redirected, source: ServerAddress) -> ServerAddress:
        raise redirect

    def suspect(self, address: ServerAddress) -> None:
        if self._master == address:
            self._master = None


class ClusterTopology:
    """The nodes of a cluster, and which of them owns which slot."""

    any_keys_together = False
    without_tls = None  # a failure does not say which server it was
    can_fail_over = True

    def __init__(self, seeds: Sequence[ServerAddress]) -> None:
        self._seeds = list(seeds)
        self._owners: list[ServerAddress | None] = [None] * SLOT_COUNT
        self._masters: list[ServerAddress] = []
        self._replicas: list[ServerAddress] = []
        self._suspects: dict[ServerAddress, None] = {}
        self._stale = True
        self._discovered_at = float("-inf")
        self.text: str = f"the cluster of {', '.join(map(str, seeds))}"
        self.other_url: str = seeds[0].url()

    def node(self, tag: bytes) -> ServerAddress | None:
        if self._stale and time.monotonic() - self._discovered_at > REDISCOVER_AFTER_S:
            return None
        return self._owners[slot(tag)]

    def owner(self, tag: bytes) -> ServerAddress | None:
        return self._owners[slot(tag)]

    @property
    def servers(self) -> Sequence[ServerAddress]:
        return [*self._masters, *self._replicas]

    @property
    def masters(self) -> Sequence[ServerAddress]:
        return list(self._masters)

    def discover(self, execute: Execute) -> Flow[None]:
        self._discovered_at = time.monotonic()  # other callers use the old map meanwhile
        candidates = dict.fromkeys([*self._masters, *self._seeds])
        trusted = [address for address in candidates if address not in self._suspects]
        suspected = [address for address in candidates if address in self._suspects]
        packed, empty_reply = command("CLUSTER", "SLOTS"), "it knows of no slots"
        reply, source, failed_nodes = yield from _first_reply(
            execute, trusted + suspected, packed, "node", empty_reply
        )
        owners: list[ServerAddress | None] = [None] * SLOT_COUNT
        replicas: dict[ServerAddress, None] = {}
        for first, last, *members in reply:
            owner, *followers = (
                source.at((host or b"").decode().strip("?") or source.host, port) for host, port, *_ in members
            )
            owners[first : last + 1] = [owner] * (last - first + 1)
            replicas.update(dict.fromkeys(followers))
        self._owners = owners
        self._masters = list(dict.fromkeys(owner for owner in owners if owner is not None))
        self._replicas = list(replicas)
        self._suspects = dict.fromkeys([*self._suspects, *failed_nodes])  # these are tried last
        self._suspects.pop(source, None)
        self._stale = None in owners

    def follow_redirect(self, redirect: Redirected, source: ServerAddress) -> ServerAddress:
        to = source.at(redirect.host or source.host, redirect.port)
        if not redirect.is_temporary:
            self._owners[redirect.slot] = to
            self._stale = True  # where one slot moved, others moved too
        return to

    def suspect(self, address: ServerAddress) -> None:
        self._suspects[address] = None
        self._stale = True


def slot(tag: bytes) -> int:
    """Returns the cluster slot of all keys with this hash tag."""
    return crc_hqx(tag, 0) % SLOT_COUNT


def _first_reply(
    execute: Execute, addresses: Iterable[ServerAddress], packed: bytes, who: str, empty_reply: str
) -> Flow[tuple[Any, ServerAddress, list[ServerAddress]]]:
    """Returns the first reply that is not empty, the server that sent it, and the servers that failed before."""
    failures: dict[ServerAddress, str] = {}
    for address in addresses:
        try:
            reply = yield partial(execute, address, packed)
        except RedisError as error:
            failures[address] = str(error)
        else:
            if reply:
                return reply, address, list(failures)
            failures[address] = empty_reply
    raise ConnectFailed(f"no {who} could tell ({'; '.join(f'{who}: {why}' for who, why in failures.items())})")
