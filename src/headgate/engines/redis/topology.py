"""Which server answers for a key: the only one, the master that sentinels name, or a node of a cluster.

A topology only remembers; it asks nobody by itself. `discover` is a flow, and `ask` its way to a server. What was
learnt may be old: a question that turns out to be at the wrong door is sent on, because a server that says so has
done nothing. So nothing here needs a lock.
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
    FORMS,
    authority_end,
    check_parts,
    kind_of,
    no_database,
    scheme_of,
    unreadable,
)
from headgate.errors import InvalidRule
from headgate.flow import Flow

Ask = Callable[[ServerAddress, bytes], Any]

SLOTS = 16_384
_AGAIN = 0.1  # seconds between two looks at a cluster that seems to have changed

_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix", "valkey+unix": "unix"}


class Topology(Protocol):
    """Who answers for a key, as far as is known."""

    text: str
    joins: bool  # whether one script call may take any keys together
    moves: bool  # whether another server may take the place of one that is gone

    def node(self, tag: bytes) -> ServerAddress | None:
        """Who answers for the key with this hash tag; None: ask `discover` first."""

    def owner(self, tag: bytes) -> ServerAddress | None:
        """Who answered for it when that was last heard, in doubt or not."""

    @property
    def instead(self) -> str | None:
        """The URL to write if it turns out to be a node of a cluster, or to be none."""

    @property
    def without_tls(self) -> str | None:
        """The URL to write if the server turns out not to speak TLS, as far as that can be told."""

    @property
    def servers(self) -> Sequence[ServerAddress]:
        """Every server that is known to answer for keys, now or should another one fail."""

    @property
    def masters(self) -> Sequence[ServerAddress]:
        """Those of them that answer now."""

    def discover(self, ask: Ask) -> Flow[None]: ...
    def sent_on(self, told: Redirected, by: ServerAddress) -> ServerAddress: ...
    def suspect(self, address: ServerAddress) -> None: ...


def topology(url: str) -> Topology:
    """What an engine's URL stands for. Its options for redis-py stay; ours are gone already."""
    scheme = scheme_of(url)
    kind = kind_of(scheme)
    rest = url.partition("://")[2]
    base = scheme.partition("+")[0] if kind in ("cluster", "sentinel") else scheme
    plain = f"{_SCHEMES.get(base, base)}://"
    if "#" in url or "@" in url.partition("?")[2]:
        raise unreadable(scheme)
    check_parts(url)
    try:
        if kind in ("one", "unix"):
            return SingleServer(ServerAddress.read(plain + rest))
        hosts, address, path, options = _several(plain, rest, 6379 if kind == "cluster" else 26379)
    except (ValueError, OSError) as error:
        # The error's own text may hold the password, unless it is about a file.
        raise unreadable(scheme, f" ({error})" if isinstance(error, OSError) else "") from None
    if kind == "cluster":
        if address.db:
            raise no_database(scheme)
        return ClusterTopology([address.at(*host) for host in hosts])
    name, _, db = path.strip("/").partition("/")
    if not name or not (db or "0").isdecimal():
        raise InvalidRule(f"Which master? Write {scheme}://{FORMS[kind]}.")
    login = tuple(
        options[f"sentinel_{word}"] for word in ("username", "password") if f"sentinel_{word}" in options
    )
    master = replace(address, db=int(options.get("db", db) or 0))
    watchers = [ServerAddress(host, port, None, address.tls, login) for host, port in hosts]
    return SentinelTopology(watchers, unquote(name), master)


def _several(plain: str, rest: str, port: int) -> tuple[list[tuple[str, int]], ServerAddress, str, dict[str, str]]:
    """The hosts of a URL that names several, how they let us in, its path, and its options."""
    end = authority_end(rest)
    login, at, places = rest[:end].rpartition("@")
    parts = urlsplit(f"{plain}localhost{rest[end:]}")
    hosts = [urlsplit(f"//{place}") for place in places.split(",")]
    given = dict(parse_qsl(parts.query))
    query = urlencode({name: value for name, value in given.items() if not name.startswith("sentinel_")})
    db = parts.path if parts.path.strip("/").isdigit() else ""
    address = ServerAddress.read(f"{plain}{login}{at}localhost{db}?{query}")
    return [(host.hostname or "", host.port or port) for host in hosts], address, parts.path, given


class SingleServer:
    """A single server."""

    joins = True
    moves = False

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self.text: str = address.text
        self.instead: str = address.url("+cluster")

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

    def discover(self, ask: Ask) -> Flow[None]:
        yield from ()

    def sent_on(self, told: Redirected, by: ServerAddress) -> ServerAddress:
        raise told

    def suspect(self, address: ServerAddress) -> None:
        """There is no other."""


class SentinelTopology:
    """The master of a name, as the sentinels know it."""

    joins = True
    moves = True
    instead = None
    without_tls = None  # which of them was asked is not known here

    def __init__(self, watchers: Sequence[ServerAddress], name: str, address: ServerAddress) -> None:
        self._watchers = list(watchers)
        self._name = name
        self._template = address
        self._master: ServerAddress | None = None
        self.text: str = f"{name} of {', '.join(map(str, watchers))}"

    def node(self, tag: bytes) -> ServerAddress | None:
        return self._master

    def owner(self, tag: bytes) -> ServerAddress | None:
        return self._master

    @property
    def servers(self) -> Sequence[ServerAddress]:
        return [] if self._master is None else [self._master]

    masters = servers

    def discover(self, ask: Ask) -> Flow[None]:
        question = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        lacking = f'it knows no master called "{self._name}"'
        (host, port), watcher, _ = yield from _first_answer(ask, self._watchers, question, "sentinel", lacking)
        self._master = self._template.at(host.decode(), int(port))
        self._watchers = [watcher, *(other for other in self._watchers if other is not watcher)]

    def sent_on(self, told: Redirected, by: ServerAddress) -> ServerAddress:
        raise told

    def suspect(self, address: ServerAddress) -> None:
        if self._master == address:
            self._master = None


class ClusterTopology:
    """The nodes of a cluster, and which of them answers for which slot."""

    joins = False
    without_tls = None  # which of them was asked is not known here
    moves = True

    def __init__(self, seeds: Sequence[ServerAddress]) -> None:
        self._seeds = list(seeds)
        self._owners: list[ServerAddress | None] = [None] * SLOTS
        self._masters: list[ServerAddress] = []
        self._replicas: list[ServerAddress] = []
        self._suspects: dict[ServerAddress, None] = {}
        self._doubtful = True
        self._looked_at = float("-inf")
        self.text: str = f"the cluster of {', '.join(map(str, seeds))}"
        self.instead: str = seeds[0].url()

    def node(self, tag: bytes) -> ServerAddress | None:
        if self._doubtful and time.monotonic() - self._looked_at > _AGAIN:
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

    def discover(self, ask: Ask) -> Flow[None]:
        self._looked_at = time.monotonic()  # whoever else doubts goes by what is known meanwhile
        known = dict.fromkeys([*self._masters, *self._seeds])
        trusted = [address for address in known if address not in self._suspects]
        doubted = [address for address in known if address in self._suspects]
        question, lacking = command("CLUSTER", "SLOTS"), "it knows of no slots"
        reply, by, silent = yield from _first_answer(ask, trusted + doubted, question, "node", lacking)
        owners: list[ServerAddress | None] = [None] * SLOTS
        replicas: dict[ServerAddress, None] = {}
        for first, last, *members in reply:
            owner, *followers = (
                by.at((host or b"").decode().strip("?") or by.host, port) for host, port, *_ in members
            )
            owners[first : last + 1] = [owner] * (last - first + 1)
            replicas.update(dict.fromkeys(followers))
        self._owners = owners
        self._masters = list(dict.fromkeys(owner for owner in owners if owner is not None))
        self._replicas = list(replicas)
        self._suspects = dict.fromkeys([*self._suspects, *silent])  # they are asked last
        self._suspects.pop(by, None)
        self._doubtful = None in owners

    def sent_on(self, told: Redirected, by: ServerAddress) -> ServerAddress:
        to = by.at(told.host or by.host, told.port)
        if not told.for_now:
            self._owners[told.slot] = to
            self._doubtful = True  # where one slot went, others went too
        return to

    def suspect(self, address: ServerAddress) -> None:
        self._suspects[address] = None
        self._doubtful = True


def slot(tag: bytes) -> int:
    """The slot of all keys with this hash tag."""
    return crc_hqx(tag, 0) % SLOTS


def _first_answer(
    ask: Ask, addresses: Iterable[ServerAddress], question: bytes, who: str, lacking: str
) -> Flow[tuple[Any, ServerAddress, list[ServerAddress]]]:
    """The first answer that tells something, who gave it, and who did not."""
    failures: dict[ServerAddress, str] = {}
    for address in addresses:
        try:
            reply = yield partial(ask, address, question)
        except RedisError as trouble:
            failures[address] = str(trouble)
        else:
            if reply:
                return reply, address, list(failures)
            failures[address] = lacking
    raise ConnectFailed(f"no {who} could tell ({'; '.join(f'{who}: {why}' for who, why in failures.items())})")
