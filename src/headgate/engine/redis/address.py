"""Where the server is: an engine's URL, and connections made from it."""

from __future__ import annotations

from urllib.parse import urlsplit

from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

from headgate.engine.redis.line import Line
from headgate.errors import InvalidRule

# Seconds that a question may take; ?socket_timeout=0.1 in the URL sets another.
TIMEOUT = 1.0

_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix", "valkey+unix": "unix"}


class Address:
    """An engine's URL. Never prints the password."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self._url = f"{_SCHEMES.get(scheme, scheme)}://{rest}"
        try:
            parts = urlsplit(self._url)
            self.text = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
            # The pools are only factories here: they know how to read a URL and make a connection of it.
            self._pool = ConnectionPool.from_url(self._url, retry=Retry(NoBackoff(), 0), **self._defaults())
            self._async_pool = AsyncConnectionPool.from_url(
                self._url, retry=AsyncRetry(NoBackoff(), 0), **self._defaults()
            )
        except ValueError:
            # The error's own text may hold the password.
            raise InvalidRule(
                f"The engine's URL {scheme}://… cannot be read. Write {scheme}://user:password@host:6379/0, "
                "with / and other special characters of the password as %2F and so on."
            ) from None

    def _defaults(self) -> dict[str, float | int]:
        # RESP2: our replies are arrays of integers in both, and push messages have no place here.
        return {"protocol": 2, "socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}

    def line(self) -> Line:
        connection = self._pool.make_connection()
        return Line(connection, self._pool.connection_kwargs["socket_timeout"])

    def async_connection(self) -> AsyncConnection:
        connection: AsyncConnection = self._async_pool.make_connection()
        return connection
