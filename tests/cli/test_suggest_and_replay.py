"""headgate suggest and replay: from a log to a rulebook, and back over the log."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.rules import load
from headgate.traffic import key_counts
from tests.cli.conftest import Prompt
from tests.repo_rules.repository import ROOT
from tests.traffic.sample_logs import combined_log, scan, visits


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(combined_log(tmp_path / "access.log", [*visits(300), *scan(600, 900, per_second=3)]))


def test_from_a_log_to_a_replayed_rulebook(prompt: Prompt, log: str, tmp_path: Path) -> None:
    rules = str(tmp_path / "rules.yaml")
    assert prompt("suggest", log, "--write", rules) == 0
    assert "combined log, 3," in prompt.out
    assert "suggested: " in prompt.out
    assert "address=203.0.113.66" in prompt.out
    assert "scanner" in prompt.out
    [rule] = load.read(rules).rules
    assert rule.name == "per-address"
    shadow = prompt.json("replay", log, "--rules", rules)
    assert shadow["new"]["refused"] == 0
    assert shadow["new"]["rules"][0]["kind"] == "shadow"
    live = prompt.json("replay", log, "--rules", rules, "--enforce")
    assert live["new"]["keys_refused"] == 1
    worst = live["new"]["rules"][0]["most_refused"][0]
    assert worst["key"] == "address=203.0.113.66"
    assert set(worst) == {"key", "refused", "offered", "first", "last"}  # times in seconds, and no other
    assert prompt("replay", log, "--rules", rules, "--enforce") == 0
    assert "most refused by" in prompt.out


def test_suggest_as_a_document(prompt: Prompt, log: str) -> None:
    document = prompt.json("suggest", log, "--by", "address,path", "--where", "path: /page/**")
    assert document["logs"][0]["unreadable"] == 0
    assert document["heavy_keys"] == []
    assert [row["window"] for row in document["demand"]] == ["second", "minute", "hour"]
    assert "when: {path: /page/**}" in document["rulebook"]
    assert "key: [address, path]" in document["rulebook"]


def test_the_written_headroom_is_the_arithmetic(prompt: Prompt, log: str, tmp_path: Path) -> None:
    document = prompt.json("suggest", log)
    needed, burst = document["needed_burst"], document["burst"]
    assert (needed, burst) == (17, 26)
    assert f"a burst of {needed} refuses no key" in document["rulebook"]
    assert f"times 1.5 for headroom, rounded up: {burst}." in document["rulebook"]
    single = combined_log(tmp_path / "single.log", [(n * 60.0, f"192.0.2.{n % 200}", "/") for n in range(400)])
    document = prompt.json("suggest", str(single))
    assert (document["needed_burst"], document["burst"]) == (1, 5)
    assert "and 4 more for headroom: 5." in document["rulebook"]


def test_one_count_for_all_calls_and_a_cost(prompt: Prompt, tmp_path: Path) -> None:
    log = tmp_path / "tokens.csv"
    log.write_text("TIMESTAMP,Tokens\n" + "".join(f"2025-10-10 13:00:{n:02},{n * 10}\n" for n in range(60)))
    document = prompt.json("suggest", str(log), "--by", "all", "--cost", "Tokens")
    assert document["keys"] == 1
    assert document["demand_in"] == "units"
    assert document["demand"][0]["most"] == 590
    assert document["demand"][1]["most"] == sum(range(0, 600, 10))
    assert document["rate"] == "500/s"  # what a call costs, not how many come
    assert document["needed_burst"] == 500 + sum(range(10, 100, 10))
    assert "name: all-calls" in document["rulebook"]


def test_differences_call_by_call(prompt: Prompt, log: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("rules: [{name: each, key: address, limit: 60/minute}]")
    new.write_text("rules: [{name: each, key: address, limit: 30/minute}]")
    words = "replay", log, "--rules", str(new), "--against", str(old)
    document = prompt.json(*words, "--changes", "3")
    assert document["new"]["refused"] - document["old"]["refused"] == document["differences"]["newly_refused"]
    assert len(document["differences"]["calls"]) == 3
    assert prompt(*words, "--changes", "3") == 0
    assert prompt.out.count("refused  each") == 3


def test_standard_input(prompt: Prompt, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(log, "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(file.read()))))
    assert prompt.json("suggest", "-")["logs"][0]["name"] == "standard input"


def test_an_unconfirmed_bound_writes_nothing(prompt: Prompt, tmp_path: Path) -> None:
    quiet = [(number * 10.0, f"192.0.2.{number % 200}", "/") for number in range(1200)]
    busy = [(12_000 + number * 0.1, f"198.51.100.{number % 30}", "/") for number in range(600)]
    log = str(combined_log(tmp_path / "log", [*quiet, *busy]))
    rules = tmp_path / "rules.yaml"
    assert prompt("suggest", log, "--refuse-keys", "5%", "--write", str(rules)) == 3
    assert "not confirmed" in prompt.out
    assert not rules.exists()


def test_a_file_that_exists_is_replaced_only_by_force(prompt: Prompt, log: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: mine, limit: 1/s}]")
    sentence = prompt.failure("suggest", log, "--write", str(rules))
    assert sentence == f"{rules} exists: write to another file, or say --force to replace it."
    assert load.read(rules).rules[0].name == "mine"
    assert prompt("suggest", log, "--write", str(rules), "--force") == 0
    assert load.read(rules).rules[0].name == "per-address"
    assert "say which, by --write FILE" in prompt.failure("suggest", log, "--force")
    assert "say which, by --write FILE" in prompt.failure("suggest", log, "--lockout")
    assert prompt("suggest", log, "--write", str(rules), "--force", "--lockout") == 0
    assert "lockout: {" in rules.read_text("utf-8")


@pytest.mark.parametrize("name", ["rules.toml", "rules.json", "rules.txt", "rules"])
def test_only_yaml_is_written(prompt: Prompt, log: str, tmp_path: Path, name: str) -> None:
    sentence = prompt.failure("suggest", log, "--write", str(tmp_path / name))
    assert sentence.endswith(f"{name}: --write writes YAML, with the reasons as comments: name it rules.yaml.")
    assert not (tmp_path / name).exists()


def test_mistakes_are_sentences(prompt: Prompt, log: str, tmp_path: Path) -> None:
    rules = str(tmp_path / "rules.yaml")
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("")
    binary.write_bytes(bytes(range(32)))
    one, header = tmp_path / "one", tmp_path / "header.csv"
    one.write_text("time,ip\n1760104536,192.0.2.7\n")
    header.write_text("time,ip\n")
    for words, sentence in (
        ((str(empty),), "is empty"),
        ((str(binary),), "is binary"),
        ((str(one),), "only one call"),
        ((str(header),), "names its columns, and has no calls"),
        (("/nowhere/log",), "cannot be read"),
        ((log, "--by", "tenant"), "counted by tenant, and this combined log has no such field"),
        ((log, "--by", "user"), "has a value for user"),
        ((log, "--where", "path: /nothing"), "(path is /nothing) matches none of"),
        ((log, "--where", "pth"), "is no condition"),
        ((log, "--where", "pth: /login"), "the condition tests pth, and this combined log has no such field"),
        ((log, "--where", "pth: /login"), "Did you mean path?"),
        ((log, "--refuse-keys", "200"), "a percentage from 0 to below 100"),
        ((log, "--field", "user=nobody"), 'has no field "nobody"'),
        ((log, "--format", "x"), "is not a format"),
    ):
        assert sentence in prompt.failure("suggest", *words, "--write", rules)
        assert not Path(rules).exists()
    assert "cannot be read" in prompt.failure("replay", log, "--rules", "/nowhere/rules.yaml")
    assert "/nowhere" in prompt.failure("suggest", log, "--write", "/nowhere/rules.yaml")


def test_changes_need_another_rulebook(prompt: Prompt, log: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: each, key: address, limit: 60/minute}]")
    assert "say which, by --against FILE" in prompt.failure("replay", log, "--rules", str(rules), "--changes", "5")


def test_a_replay_names_rules_that_apply_to_no_call(prompt: Prompt, log: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "rules:\n"
        "  - {name: each, key: address, limit: 60/minute}\n"
        "  - {name: nothing, when: {path: /nothing}, limit: 60/minute}\n"
        "  - {name: tenant, key: tenant, missing: skip, limit: 60/minute}\n"
        "  - {name: device, key: device, missing: one, limit: 60000/minute}\n"
        "  - {name: sleeping, when: {path: /nothing}, limit: 60/minute, mode: 'off'}\n"
    )
    assert prompt("replay", log, "--rules", str(rules)) == 0
    assert prompt.err == (
        'headgate: rules.yaml: the rules "nothing", "tenant" (calls have no tenant) apply to no call; '
        'no call has a whole key of "device" (calls have no device).\n'
    )
    rules.write_text("rules: [{name: each, key: address, limit: 60/minute}]")
    assert prompt("replay", log, "--rules", str(rules)) == 0
    assert prompt.err == ""


def test_a_replay_says_that_keys_are_sampled(
    prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_counts, "MAX_KEYS", 100)
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: each, key: address, limit: 60/minute}]")
    few = combined_log(tmp_path / "few.log", [(float(n), f"10.0.0.{n % 100}", "/") for n in range(300)])
    assert prompt("replay", str(few), "--rules", str(rules)) == 0
    assert "sampled" not in prompt.out
    many = combined_log(tmp_path / "many.log", [(float(n), f"10.0.{n % 2}.{n % 150}", "/") for n in range(300)])
    page = tmp_path / "report.html"
    assert prompt("replay", str(many), "--rules", str(rules), "--html", str(page)) == 0
    assert ">~" in page.read_text("utf-8")
    assert "sampled: each has more than 100 keys, so" in prompt.out


def test_a_full_disk_leaves_nothing_half_written(prompt: Prompt, log: str) -> None:
    folder = Path(log).parent
    words = ["suggest", log, "--write", str(folder / "rules.yaml"), "--html", str(folder / "report.html")]
    ran = subprocess.run(
        [sys.executable, "-m", "headgate", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "report.html cannot be written: File too large." in ran.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["access.log"]
    assert "cannot be written: there is no folder" in prompt.failure(
        "suggest", log, "--html", "/dev/full/report.html"
    )


def test_a_log_counts_once(prompt: Prompt, log: str) -> None:
    assert "is given twice" in prompt.failure("suggest", log, log)
    assert "Standard input is given twice" in prompt.failure("suggest", "-", "-")


@pytest.mark.parametrize("command", ["suggest", "replay"])
def test_the_report_is_one_page_without_network(prompt: Prompt, log: str, tmp_path: Path, command: str) -> None:
    rules, report = tmp_path / "rules.yaml", tmp_path / "report.html"
    rules.write_text("rules: [{name: each, key: address, limit: 30/minute}]")
    words = ("--rules", str(rules)) if command == "replay" else ()
    assert prompt(command, log, *words, "--html", str(report)) == 0
    page = report.read_text()
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport"' in page
    assert "<svg" in page
    assert "203.0.113.66" in page
    for fetched in ("<script", "http://", "https://", "url(", "@import", "<img", "<link"):
        assert fetched not in page


def test_text_of_a_log_cannot_enter_the_page_as_html(prompt: Prompt, tmp_path: Path) -> None:
    log, report = tmp_path / "log.csv", tmp_path / "report.html"
    log.write_text(
        "time,user\n"
        + "".join(f"{1000 + n},<b>ann{n % 40}\n" for n in range(60))
        + "1030,<script>x\n" * 99
        + "1100,ann\n" * 90
    )
    assert prompt("suggest", str(log), "--by", "user", "--html", str(report)) == 0
    assert "<script>" not in report.read_text()
    assert "&lt;script&gt;" in report.read_text()
