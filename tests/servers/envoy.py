"""A real Envoy that a test configures, calls, measures, restarts, kills and stops.

A bootstrap is plain dicts, in the words of Envoy's own documentation, so that what a test proves can be copied
into a user's configuration:

    quota = filter_("rate_limit_quota", "rate_limit_quota.v3.RateLimitQuotaFilterConfig", domain="edge", ...)
    service = grpc_cluster("service", "127.0.0.1:8081")
    with Backend() as backend, Envoy([quota], backend, clusters=[service]) as envoy:
        httpx.get(envoy.url)
"""

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.servers.http_backend import Backend
from tests.servers.redis_server import free_port
from tests.servers.server_programs import LAST_WORDS, GatewayProcess, envoy_binary

Json = dict[str, Any]

_CONNECTIONS = "filters.network.http_connection_manager.v3.HttpConnectionManager"
_PROTOCOL = "upstreams.http.v3.HttpProtocolOptions"


class Envoy(GatewayProcess):
    """One Envoy with one listener. Every request passes `filters`, then goes to `backend`.

    `clusters` are those that the filters ask. `route` are fields of the route's action (`rate_limits`), `host` of
    the virtual host (`rate_limits`, `typed_per_filter_config`, or `routes` of the test's own, to the cluster
    "backend"), `connections` of the HTTP connection manager. `concurrency` is the number of worker threads.
    """

    name = "Envoy"

    def __init__(
        self,
        filters: Sequence[Json],
        backend: Backend,
        *,
        clusters: Sequence[Json] = (),
        route: Mapping[str, Any] | None = None,
        host: Mapping[str, Any] | None = None,
        connections: Mapping[str, Any] | None = None,
        concurrency: int = 1,
        level: str = "info",
    ) -> None:
        self.admin_port = 0
        self._filters = [*filters, http_filter("router", "router.v3.Router")]
        self._clusters = [http_cluster("backend", backend.address), *clusters]
        self._host = _host(route or {}, host or {})
        self._connections = dict(connections or {})
        self._concurrency, self._level = concurrency, level
        super().__init__()

    def stats(self, prefix: str = "") -> dict[str, int]:
        """Counters and gauges whose names begin so."""
        lines = (line.partition(": ") for line in self.admin("/stats").splitlines())
        return {name: int(value) for name, _, value in lines if name.startswith(prefix) and value.isdigit()}

    def admin(self, path: str, method: str = "GET") -> str:
        """Returns the reply of the admin endpoint."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=20)
        try:
            connection.request(method, path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def bootstrap(self) -> Json:
        """The whole configuration, as Envoy reads it."""
        connections = typed_config(
            _CONNECTIONS,
            stat_prefix="ingress",
            route_config={"name": "routes", "virtual_hosts": [self._host]},
            http_filters=self._filters,
        )
        network = {
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": connections | self._connections,
        }
        listener = {
            "name": "ingress",
            "address": _socket("127.0.0.1", self.port),
            "filter_chains": [{"filters": [network]}],
        }
        return {
            "node": {"id": f"envoy-{self.port}", "cluster": "tests"},
            "admin": {"address": _socket("127.0.0.1", self.admin_port)},
            "static_resources": {"listeners": [listener], "clusters": self._clusters},
        }

    def _choose_ports(self) -> None:
        self.port, self.admin_port = free_port(), free_port()

    def _ports(self) -> list[int]:
        return [self.port, self.admin_port]

    def _command_line(self, folder: Path) -> list[str]:
        (folder / "envoy.json").write_text(json.dumps(self.bootstrap(), indent=1))
        return [
            *(str(envoy_binary()), "-c", str(folder / "envoy.json")),
            *("--concurrency", str(self._concurrency), "--disable-hot-restart", "--log-level", self._level),
        ]

    def _last_words(self) -> str:
        # The reason comes first, and then the whole bootstrap again.
        _, critical, words = self.log.partition("[critical]")
        return (critical + words)[:LAST_WORDS] if critical else super()._last_words()

    def _missing(self) -> str | None:
        try:
            state = self.admin("/ready").strip()
        except OSError as error:
            return f"Envoy's admin endpoint does not answer: {error}"
        return None if state == "LIVE" else f"Envoy says {state}"


def http_filter(name: str, kind: str, **fields: Any) -> Json:
    """One HTTP filter: its name below envoy.filters.http, its type below envoy.extensions.filters.http."""
    return {"name": f"envoy.filters.http.{name}", "typed_config": typed_config(f"filters.http.{kind}", **fields)}


def typed_config(kind: str, **fields: Any) -> Json:
    """A message that says its type, which is one below envoy.extensions."""
    return {"@type": f"type.googleapis.com/envoy.extensions.{kind}", **fields}


def http_cluster(name: str, address: str, **fields: Any) -> Json:
    """A cluster of one HTTP/1.1 server."""
    host, _, port = address.rpartition(":")
    endpoint = {"endpoint": {"address": _socket(host, int(port))}}
    cluster: Json = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    return cluster | fields


def grpc_cluster(name: str, address: str, **fields: Any) -> Json:
    """A cluster of one server that speaks HTTP/2 without TLS, as gRPC does."""
    options = typed_config(_PROTOCOL, explicit_http_config={"http2_protocol_options": {}})
    protocol = {f"envoy.extensions.{_PROTOCOL}": options}
    return http_cluster(name, address, typed_extension_protocol_options=protocol, **fields)


def grpc_service(cluster: str, timeout: str | None = None) -> Json:
    """Returns how a filter names the gRPC service that it asks."""
    service: Json = {"envoy_grpc": {"cluster_name": cluster}}
    return service if timeout is None else service | {"timeout": timeout}


def _host(route: Mapping[str, Any], host: Mapping[str, Any]) -> Json:
    everything = {"match": {"prefix": "/"}, "route": {"cluster": "backend"} | dict(route)}
    return {"name": "all", "domains": ["*"], "routes": [everything]} | dict(host)


def _socket(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}
