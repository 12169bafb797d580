"""nginx writes a decision log by the log_format that `headgate nginx conf` prints."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from headgate.gateway.nginx_conf import NginxOptions, render_conf
from headgate.rules import load
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.telemetry.log_lines import replay

RULES: dict[str, Any] = {
    "rules": [
        {"name": "per-address", "key": "address", "missing": "deny", "limit": "20/s burst 4"},
        {
            "name": "login",
            "when": {"path": "/login"},
            "key": ["address", "header.x-user"],
            "missing": "one",
            "limit": "10/s burst 2",
            "candidate": "5/s",
        },
        {"name": "later", "key": "header.x-user", "missing": "skip", "limit": "1/minute", "mode": "shadow"},
    ]
}
SINGLE: dict[str, Any] = {"rules": [RULES["rules"][0]]}


def log_directives() -> str:
    """The directives that `headgate nginx conf --decision-log` prints, with a log in the test's folder."""
    text = render_conf(load.from_mapping(SINGLE), NginxOptions(package_path="/lua", decision_log=True))
    lines = text[text.index('map "" $headgate_decision') :].partition("\n\n")[0]
    return lines.replace("/var/log/nginx/decisions.jsonl", "decisions.jsonl").replace("flush=1s", "flush=100ms")


def records(gate: NginxGateway, count: int) -> list[dict[str, Any]]:
    path = gate.folder / "decisions.jsonl"
    until(
        lambda: (
            None
            if len(path.read_text().splitlines()) >= count
            else f"there are too few lines: {path.read_text()[-200:]}"
        ),
        20,
    )
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(params=["redis", "shared"])
def where(request: pytest.FixtureRequest, redis_server: RedisServer) -> str | None:
    return redis_server.url if request.param == "redis" else None


def test_a_line_has_everything_about_its_request(where: str | None) -> None:
    with NginxGateway(RULES, where, http=log_directives()) as gate:
        gate.get("/login?x=1", {"X-User": 'an"n'})
        gate.get("/")
        plain, other = records(gate, 2)
    assert plain.pop("at_us") > 1_700_000_000_000_000
    assert plain.pop("latency_us") >= 0
    assert plain.pop("duration_s") >= 0
    assert plain.pop("process") == other["process"] != ""
    verdict = {"cost": 1, "allowed": True, "retry_after_us": 0, "delay_us": 0}
    key = 'address=127.0.0.1|header.x-user=an"n'
    assert plain == {
        "seq": 1,
        "attributes": {"address": "127.0.0.1", "header.x-user": 'an"n', "path": "/login"},
        "cost": None,
        "allowed": True,
        "rule": "login",
        "version": None if where is None else 1,
        "sample": 1,
        "status": 200,
        "verdicts": [
            {
                "rule": "per-address",
                "key": "address=127.0.0.1",
                "limit": "20/s burst 4",
                "remaining": 3,
                **verdict,
            },
            {"rule": "login", "key": key, "limit": "10/s burst 2", "remaining": 1, **verdict},
        ],
        "shadow": [{"rule": "later", "key": 'header.x-user=an"n', "limit": "1/minute", "remaining": 0, **verdict}],
        "candidate": [{"rule": "login", "key": key, "limit": "5/s", "remaining": 4, **verdict}],
    }
    assert (other["seq"], other["attributes"]["path"], other["rule"]) == (2, "/", "per-address")


@pytest.mark.parametrize("rules", [SINGLE, RULES])
def test_a_replay_gives_the_same_answers(where: str | None, rules: dict[str, Any], tmp_path: Path) -> None:
    with NginxGateway(rules, where, http=log_directives(), workers=2) as gate:

        def send_requests(number: int) -> None:
            for turn in range(40):
                gate.get("/login" if turn % 2 else "/", {"X-User": f"user-{turn % 3}"}, source=f"127.0.0.{number}")

        threads = [threading.Thread(target=send_requests, args=(number % 3 + 1,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lines = records(gate, 160)
        (tmp_path / "log").write_text((gate.folder / "decisions.jsonl").read_text())
    assert {each["status"] for each in lines} == {200, 429}
    assert all((each["status"] == 200) is each["allowed"] for each in lines)
    replayed = replay([tmp_path / "log"], rules, tmp_path)
    recorded = replayed["recorded"]
    assert recorded["calls"] == 160, replayed["logs"]
    assert recorded["same_groups"] == recorded["groups"]


def test_denied_and_free_requests_are_lines_too(where: str | None) -> None:
    rule = {"name": "users", "when": {"path": "/x"}, "key": "header.x-user", "missing": "deny", "limit": "9/s"}
    with NginxGateway({"rules": [rule]}, where, http=log_directives()) as gate:
        assert [gate.get(path).status for path in ("/", "/x")] == [200, 429]
        free, denied = records(gate, 2)
    assert (free["allowed"], free["rule"], free["verdicts"]) == (True, None, [])
    assert (denied["allowed"], denied["rule"]) == (False, "users")
    assert denied["verdicts"][0]["limit"] is None
    assert denied["at_us"] > 1_700_000_000_000_000


def test_bytes_that_are_no_text_stay_what_they_are(where: str | None, tmp_path: Path) -> None:
    rules = {"rules": [{"name": "path", "key": "path", "limit": "1/minute"}]}
    with NginxGateway(rules, where, http=log_directives()) as gate:
        assert [gate.get("/%FF%22%0A").status for _ in range(2)] == [200, 429]
        path = gate.folder / "decisions.jsonl"
        until(lambda: None if path.read_bytes().count(b"\n") >= 2 else "too few lines", 20)
        (tmp_path / "log").write_bytes(path.read_bytes())
    assert replay([tmp_path / "log"], rules, tmp_path)["recorded"]["same"] == 2


def test_a_sample_has_all_refusals_and_no_other_line_if_it_is_zero(where: str | None) -> None:
    for rules, refused in ((SINGLE, "verdicts"), (RULES, "shadow")):
        with NginxGateway(
            rules, where, http=log_directives(), options="decision_log_sample = 0, recent_records = false"
        ) as gate:
            for _ in range(3):
                gate.get("/", {"X-User": "ann"})
            assert [gate.get("/x", {"X-User": "ann"}, source="127.0.0.9").status for _ in range(9)].count(429) >= 1
            lines = records(gate, 1)
        assert {each["sample"] for each in lines} == {0}
        assert all(any(not verdict["allowed"] for verdict in each["verdicts"] + each["shadow"]) for each in lines)
        assert any(not verdict["allowed"] for each in lines for verdict in each[refused])
        assert {each["latency_us"] for each in lines} == {None}
        assert {each["attributes"]["address"] for each in lines} <= {"127.0.0.1", "127.0.0.9"}


def test_a_sample_is_drawn(where: str | None) -> None:
    rules = {"rules": [{"name": "api", "limit": "100000/s"}]}
    with NginxGateway(rules, where, http=log_directives(), options="decision_log_sample = 0.5") as gate:
        assert {gate.get("/").status for _ in range(200)} == {200}
        lines = records(gate, 40)  # fewer would be drawn once in 10^17 runs
    assert {each["sample"] for each in lines} == {0.5}
    assert len(lines) <= 160
    assert all(each["latency_us"] >= 0 for each in lines)


def test_nothing_is_recorded_unless_it_is_wanted(where: str | None) -> None:
    with NginxGateway(SINGLE, where) as gate:
        assert gate.get("/").status == 200
        assert gate.lines(1) == ["200 PASSED per-address 3"]
        assert not (gate.folder / "decisions.jsonl").exists()


def test_the_printed_configuration_has_the_log_commented_out_or_in_effect() -> None:
    book = load.from_mapping(SINGLE)
    for decision_log in (True, False):
        text = render_conf(book, NginxOptions(package_path="/lua", decision_log=decision_log))
        directives = [line.strip() for line in text.splitlines() if "headgate_decision" in line]
        assert len(directives) == 4
        assert all(line.startswith("#") is not decision_log for line in directives)
