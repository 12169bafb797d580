"""The configurations that the documentation shows, for tests to run."""

import json
import re
import textwrap

from tests.repo_rules.repository import ROOT
from tests.servers.envoy import Json, grpc_cluster


def config_blocks(page: str, language: str) -> list[str]:
    """The blocks of this language on a page of the documentation."""
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def reference_config() -> str:
    """The reference service's file that the page shows."""
    text = (ROOT / "docs" / "how-to" / "envoy.md").read_text(encoding="utf-8")
    match = re.search(r"^    domain: edge\n(?:    .*\n)+", text, re.M)
    assert match
    return textwrap.dedent(match[0])


def filter_of(name: str) -> Json:
    """One of the filters that the page tells."""
    blocks: list[Json] = [json.loads(text) for text in config_blocks("envoy.md", "json")]
    return next(each for each in blocks if each["name"] == f"envoy.filters.http.{name}")


def connections() -> Json:
    """The fields of Envoy's connection manager that the page tells."""
    text = (ROOT / "docs" / "how-to" / "envoy.md").read_text(encoding="utf-8")
    match = re.search(r'^    "use_remote_address".*\n(?:    .*\n)+', text, re.M)
    assert match
    made: Json = json.loads(f"{{{match[0]}}}")
    return made


def cluster(address: str) -> Json:
    """The cluster that it tells, at another address."""
    blocks: list[Json] = [json.loads(text) for text in config_blocks("envoy.md", "json")]
    documented_cluster = next(each for each in blocks if each["name"] == "headgate")
    assert documented_cluster == grpc_cluster("headgate", "127.0.0.1:8081", connect_timeout="1s")
    return grpc_cluster("headgate", address)
