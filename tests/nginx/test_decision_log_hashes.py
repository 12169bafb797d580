"""nginx hashes the keys of its decision log as Python does: the same salt gives the same hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.rules import load
from headgate.rules.keys import Dimension
from headgate.telemetry.key_hashing import KeyHasher, counted_dimensions
from headgate.telemetry.recent_records import RecentRecordsReader
from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.test_decision_log import log_directives, records
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.telemetry.log_lines import replay

SALT = "a secret of some length, and a little longer than one block of the hash function"
RULES: dict[str, Any] = {
    "rules": [
        {"name": "network", "key": "address/24", "missing": "deny", "limit": "5/minute"},
        {
            "name": "both",
            "when": {"path": "/x/**"},
            "key": ["address/28", "header.x-user"],
            "missing": "one",
            "limit": "3/minute",
            "candidate": "2/minute",
        },
        {"name": "shadow", "key": "argument.q", "missing": "skip", "limit": "1/minute", "mode": "shadow"},
        {"name": "all", "limit": "1000/s"},
    ]
}


@pytest.mark.parametrize("salt", ["12345678", SALT])
def test_hashes_are_those_of_python(salt: str, tmp_path: Path) -> None:
    users = ["ann", "b|b%", "d\u00e9j\u00e0", "x" * 300]
    with NginxGateway(RULES, http=log_directives(), options=f'decision_log_salt = "{salt}"') as gate:
        for user in users:
            gate.get("/x/y?q=z", {"X-User": user.encode().decode("latin-1")}, source="127.0.0.77")
        gate.get("/x/y")
        lines = records(gate, len(users) + 1)
        text = (gate.folder / "decisions.jsonl").read_text()
    hasher, dimensions = KeyHasher(salt), counted_dimensions(load.from_mapping(RULES).rules)
    for user, line in zip(users, lines, strict=False):
        attributes = {"address": "127.0.0.77", "header.x-user": user, "argument.q": "z", "path": "/x/y"}
        assert line["attributes"] == hasher.attributes(attributes, dimensions)
        assert line["hashed"] == ["address", "argument.q", "header.x-user"]
        network, both, whole = line["verdicts"]
        assert network["key"] == hasher.rule_key("address=127.0.0.0/24")
        hashed_user = hasher.attributes({"u": user}, {"u": Dimension("u")})["u"]
        assert both["key"] == f"{hasher.rule_key('address=127.0.0.64/28')}|header.x-user={hashed_user}"
        assert line["shadow"][0]["key"] == hasher.rule_key("argument.q=z")
        assert whole["key"] == "all"
    assert lines[-1]["verdicts"][1]["key"].endswith("|header.x-user=")
    assert "127.0.0" not in text.replace(lines[0]["process"], "")
    assert "ann" not in text


def test_a_log_with_hashed_keys_is_replayed(tmp_path: Path) -> None:
    rules = {"rules": [rule for rule in RULES["rules"] if rule["name"] != "both"]}
    with NginxGateway(rules, http=log_directives(), options=f'decision_log_salt = "{SALT}"') as gate:
        statuses = [gate.get("/?q=z", source=f"127.0.{number % 2}.7").status for number in range(14)]
        records(gate, 14)
        (tmp_path / "log").write_text((gate.folder / "decisions.jsonl").read_text())
    assert statuses.count(429) == 4
    recorded = replay([tmp_path / "log"], {"rules": rules["rules"][1:]}, tmp_path)["recorded"]
    assert recorded["calls"] == 14


def test_recent_records_are_hashed_too(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url, options=f'decision_log_salt = "{SALT}"') as gate:
        reader = RecentRecordsReader(redis_server.url)

        def missing() -> str | None:
            assert gate.get("/").status in (200, 429)
            return None if list(reader.records()) else "no record yet"

        until(missing, 30)
        [*found] = reader.records()
        reader.close()
    expected = KeyHasher(SALT).rule_key("address=127.0.0.0/24")
    assert {record["verdicts"][0]["key"] for record in found} == {expected}
