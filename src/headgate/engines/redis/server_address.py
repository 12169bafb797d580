"""Where a server is, and how one is let in: host and port or a socket's path, TLS, a login, a database.

redis-py reads the URL, so that everything it knows is known here too (?db=, ?ssl_ca_certs=, ?ssl_certfile=, ...).
Connecting and talking are ours: a decision's deadline must hold for the whole of them.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio.connection import RedisSSLContext
from redis.connection import parse_url
from redis.exceptions import RedisError

from headgate.engines.redis.protocol import command
from headgate.lazy import lazy_property


@dataclass(frozen=True, eq=False)
class ServerAddress:
    """One server. Never prints the password."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    tls: ssl.SSLContext | None = None
    login: tuple[str, ...] = ()
    db: int = 0

    @classmethod
    def read(cls, url: str) -> ServerAddress:
        """The address in a redis://, rediss:// or unix:// URL; ValueError if there is none."""
        found: dict[str, Any] = parse_url(url)
        password, username = found.get("password"), found.get("username")
        login = () if password is None else (password,) if username is None else (username, password)
        return cls(
            found.get("host", "localhost"),
            found.get("port", 6379),
            found.get("path"),
            _tls(found) if url.startswith("rediss:") else None,
            login,
            found.get("db", 0),
        )

    def at(self, host: str, port: int) -> ServerAddress:
        """Another server that lets us in the same way."""
        return replace(self, host=host, port=port, path=None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerAddress) and self._place == other._place

    def __hash__(self) -> int:
        return self._hash

    @lazy_property
    def _place(self) -> tuple[str, int, str | None]:
        return self.host, self.port, self.path

    @lazy_property
    def _hash(self) -> int:
        return hash(self._place)

    @property
    def text(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def url(self, kind: str = "") -> str:
        """A URL that leads there, without its login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'' if self.tls is None else 's'}{kind}://{host}:{self.port}"

    @property
    def without_tls(self) -> str | None:
        """The URL that leads there without TLS; None unless a handshake was begun, and none was ever finished."""
        stats = {} if self.tls is None else self.tls.session_stats()
        if not stats.get("connect") or stats.get("connect_good"):
            return None
        return replace(self, tls=None).url()

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    @property
    def greeting(self) -> list[bytes]:
        """What is said before the first question."""
        words = [command("AUTH", *self.login)] if self.login else []
        return [*words, command("SELECT", self.db)] if self.db else words

    def connect(self, timeout: float) -> socket.socket:
        """An open socket; OSError if there is nobody."""
        if self.path is not None:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(timeout)
            try:
                sock.connect(self.path)
            except OSError as error:
                sock.close()
                raise OSError(f"{self.path}: {error.strerror or error}") from error
            return sock
        sock = socket.create_connection((self.host, self.port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock if self.tls is None else self.tls.wrap_socket(sock, server_hostname=self.host)


def _tls(found: dict[str, Any]) -> ssl.SSLContext:
    names = (
        *("keyfile", "certfile", "include_verify_flags", "exclude_verify_flags", "ca_certs", "ca_data", "ca_path"),
        *("min_version", "ciphers", "password"),
    )
    chosen = {name: found[f"ssl_{name}"] for name in names if f"ssl_{name}" in found}
    try:
        context = RedisSSLContext(
            cert_reqs=found.get("ssl_cert_reqs", "required"),
            check_hostname=found.get("ssl_check_hostname", True),
            **chosen,
        )
    except RedisError as error:
        raise ValueError(str(error)) from None
    return context.get()
