"""A real Prometheus that scrapes what a test names, every 200 ms, and answers queries."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.redis_server import free_port
from tests.servers.server_programs import GatewayProcess, command

SCRAPE_INTERVAL = "200ms"


class Prometheus(GatewayProcess):
    """One Prometheus. `targets` are the addresses that it scrapes, by the name of their job."""

    name = "Prometheus"

    def __init__(self, targets: Mapping[str, str], rule_files: list[Path] | None = None) -> None:
        self._targets = dict(targets)
        self._rule_files = [str(path) for path in rule_files or []]
        super().__init__()

    def _choose_ports(self) -> None:
        self.port = free_port()

    def _command_line(self, folder: Path) -> list[str]:
        config = {
            "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
            "rule_files": self._rule_files,
            "scrape_configs": [
                {"job_name": job, "scrape_timeout": SCRAPE_INTERVAL, "static_configs": [{"targets": [address]}]}
                for job, address in self._targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        return [
            str(command("prometheus", "prometheus")),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
        ]

    def _missing(self) -> str | None:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as response:
                return None if response.status == 200 else f"Prometheus answers {response.status}"
        except OSError as error:
            return f"Prometheus is not ready: {error}"

    def query(self, expression: str) -> dict[str, float]:
        """Returns the values of an expression now, each under its labels without job and instance."""
        encoded = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{encoded}", timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
        results = answer["data"]["result"]
        return {_labels(each["metric"]): float(each["value"][1]) for each in results}


def _labels(metric: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(metric.items()) if name not in ("instance", "job"))
