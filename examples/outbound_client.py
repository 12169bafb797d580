"""A client that keeps somebody else's limit, together with every other process that runs it.

    pip install 'headgate[httpx,redis]'
    ENGINE=redis://localhost:6379/0 python examples/outbound_client.py http://localhost:8000/items/7

Start it several times: all of them wait in one queue, and a 429 stops all of them until its Retry-After. Without
ENGINE it counts in memory, which is right for one process.
"""

import os
import sys

import httpx

from headgate import Limiter
from headgate.integrations.httpx import LimitedTransport

LIMIT = "5/s burst 1"  # what the partner allows, of which nothing is saved up


def main(url: str, calls: int = 10) -> list[int]:
    """Calls the URL, each time in its turn; returns the statuses."""
    engine = os.environ.get("ENGINE", "memory://")
    with Limiter(LIMIT, engine, name="partner", pausable=True) as limiter:
        transport = LimitedTransport(limiter, timeout=60, retries=3)
        with httpx.Client(transport=transport) as client:
            return [client.get(url).status_code for _ in range(calls)]


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, main(sys.argv[1]))) + "\n")
