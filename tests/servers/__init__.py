"""Real servers for tests, benchmarks and the conformance runner, and a clock to drive them by.

RedisServer     one server                      TlsServer   one that speaks TLS only
Cluster         masters, replicas, slots        Proxy       a faulty link to a server
Sentinels       a watched master and replicas   DrivenClock the time that a server sees
Nginx           with our Lua modules on its path
"""

from tests.servers.binaries import KINDS, Kind, MissingComponent
from tests.servers.cluster import Cluster, ClusterNode
from tests.servers.driven_clock import BASE_US, DrivenClock
from tests.servers.nginx import Nginx
from tests.servers.proxy import Proxy
from tests.servers.redis_server import RedisServer
from tests.servers.sentinel import Sentinels
from tests.servers.tls import TlsServer

__all__ = [
    "BASE_US",
    "Cluster",
    "ClusterNode",
    "DrivenClock",
    "Kind",
    "KINDS",
    "MissingComponent",
    "Nginx",
    "Proxy",
    "RedisServer",
    "Sentinels",
    "TlsServer",
]
