"""Warns once if all clients seem to have one address: the proxy's, which is not trusted.

An application that does not trust the proxy in front of it sees the proxy's address on every call, and counts
all clients together. The sign: many calls carry X-Forwarded-For or Forwarded, and all come from one or a few peers
that are not trusted proxies.
"""

from __future__ import annotations

import logging

MAX_ADDRESSES = 4  # a proxy may have several nodes
CALLS = 1000

_log = logging.getLogger("headgate")


class SharedAddressAlarm:
    """Counts calls with a forwarding field from peers that are not trusted."""

    __slots__ = ("_addresses", "_calls", "_done")

    def __init__(self) -> None:
        self._addresses: set[str] = set()
        self._calls = 0
        self._done = False

    def note(self, address: str) -> None:
        """Notes one such call; logs a warning at the thousandth if all came from a few addresses."""
        if self._done:
            return
        self._addresses.add(address)
        self._calls += 1
        if len(self._addresses) > MAX_ADDRESSES:
            self._addresses, self._calls = set(), 0  # clients of their own: they may send the field
        elif self._calls >= CALLS:
            self._done = True
            addresses = sorted(self._addresses)
            _log.warning(
                "headgate: %s calls from %s: set trusted_proxies. Each had X-Forwarded-For or Forwarded, which is "
                "not read, since %s is no trusted proxy: all clients behind it are counted as one. If it is your "
                "proxy, write trusted_proxies=[%s].",
                f"{CALLS:,}",
                "one address" if len(addresses) == 1 else f"{len(addresses)} addresses",
                " or ".join(addresses) or "the peer",
                ", ".join(f'"{address or "unix"}"' for address in addresses),
            )
