"""Real servers for tests, benchmarks and the conformance runner, and a clock to drive them by.

RedisServer     one server                      TlsServer   one that speaks TLS only
Cluster         masters, replicas, slots        Proxy       a faulty link to a server
Sentinels       a watched master and replicas   DrivenClock the time that a server sees
Nginx           with our Lua modules on its path
Caddy, Envoy, Traefik   gateways that ask a service     Backend   what stands behind them
"""

from tests.servers.caddy import Caddy
from tests.servers.cluster import Cluster, ClusterNode
from tests.servers.driven_clock import BASE_US, DrivenClock
from tests.servers.envoy import Envoy
from tests.servers.faulty_proxy import Proxy
from tests.servers.http_backend import Backend, BackendRequest, BackendResponse
from tests.servers.nginx import Nginx
from tests.servers.redis_server import RedisServer
from tests.servers.sentinel import Sentinels
from tests.servers.server_programs import KINDS, Kind, MissingComponent, StartFailed
from tests.servers.tls import TlsServer
from tests.servers.traefik import Traefik

__all__ = [
    "BASE_US",
    "KINDS",
    "BackendResponse",
    "Backend",
    "Caddy",
    "Cluster",
    "ClusterNode",
    "DrivenClock",
    "Envoy",
    "Kind",
    "MissingComponent",
    "Nginx",
    "Proxy",
    "RedisServer",
    "StartFailed",
    "BackendRequest",
    "Sentinels",
    "TlsServer",
    "Traefik",
]
