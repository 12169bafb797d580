"""Parses and opens the address of one server: host and port or a socket's path, TLS, a login, a database.

redis-py parses the URL, so that all of its options work here too (?db=, ?ssl_ca_certs=, ?ssl_certfile=, ...).
Connecting and reading are ours: a decision's deadline must hold for all of it.
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
from headgate.lazy_property import lazy_property


@dataclass(frozen=True, eq=False)
class ServerAddress:
    """The address of one server. Never prints the password."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    tls: ssl.SSLContext | None = None
    login: tuple[str, ...] = ()
    db: int = 0

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Parses a redis://, rediss:// or unix:// URL; raises ValueError if it is none."""
        options: dict[str, Any] = parse_url(url)
        password, username = options.get("password"), options.get("username")
        login = () if password is None else (password,) if username is None else (username, password)
        return cls(
            options.get("host", "localhost"),
            options.get("port", 6379),
            options.get("path"),
            _tls_context(options) if url.startswith("rediss:") else None,
            login,
            options.get("db", 0),
        )

    def at(self, host: str, port: int) -> ServerAddress:
        """Returns the address of another server with the same login and TLS."""
        return replace(self, host=host, port=port, path=None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerAddress) and self._identity == other._identity

    def __hash__(self) -> int:
        return self._hash

    @lazy_property
    def _identity(self) -> tuple[str, int, str | None]:
        return self.host, self.port, self.path

    @lazy_property
    def _hash(self) -> int:
        return hash(self._identity)

    @property
    def text(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def url(self, kind: str = "") -> str:
        """Returns a URL of the server, without its login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'' if self.tls is None else 's'}{kind}://{host}:{self.port}"

    @property
    def without_tls(self) -> str | None:
        """The URL of the server without TLS; None unless a handshake was begun, and none was ever finished."""
        stats = {} if self.tls is None else self.tls.session_stats()
        if not stats.get("connect") or stats.get("connect_good"):
            return None
        return replace(self, tls=None).url()

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    @property
    def handshake_commands(self) -> list[bytes]:
        """The commands to send first on a new connection: AUTH and SELECT."""
        commands = [command("AUTH", *self.login)] if self.login else []
        return [*commands, command("SELECT", self.db)] if self.db else commands

    def connect(self, timeout: float) -> socket.socket:
        """Opens a socket, with the TLS handshake if the address has TLS; raises OSError if that fails."""
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


def _tls_context(options: dict[str, Any]) -> ssl.SSLContext:
    names = (
        *("keyfile", "certfile", "include_verify_flags", "exclude_verify_flags", "ca_certs", "ca_data", "ca_path"),
        *("min_version", "ciphers", "password"),
    )
    ssl_options = {name: options[f"ssl_{name}"] for name in names if f"ssl_{name}" in options}
    try:
        context = RedisSSLContext(
            cert_reqs=options.get("ssl_cert_reqs", "required"),
            check_hostname=options.get("ssl_check_hostname", True),
            **ssl_options,
        )
    except RedisError as error:
        raise ValueError(str(error)) from None
    return context.get()
