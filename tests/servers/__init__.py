"""Real servers for tests and for the conformance runner, and a clock to drive them by."""

from tests.servers.binaries import KINDS, Kind, MissingComponent
from tests.servers.driven_clock import BASE_US, DrivenClock
from tests.servers.redis_server import RedisServer

__all__ = ["BASE_US", "DrivenClock", "Kind", "KINDS", "MissingComponent", "RedisServer"]
