"""headgate simulate: a shape of traffic through several limits."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Prompt


def test_side_by_side(prompt: Prompt, tmp_path: Path) -> None:
    rules, report = tmp_path / "rules.yaml", tmp_path / "report.html"
    rules.write_text("rules: [{name: each, key: user, missing: deny, limit: 1/s}]")
    words = "simulate", "poisson", "--rate", "20", "--for", "10s", "--limit", "10/s", "--rules", str(rules)
    document = prompt.json(*words)
    assert [each["limit"] for each in document["limits"]] == ["10/s", "rules.yaml"]
    assert document["limits"][0]["offered"] == document["limits"][1]["offered"]
    assert document["retries"] == "none"
    assert prompt(*words, "--html", str(report)) == 0
    assert "poisson: 20 calls a second on average, 10 s, 100 clients" in prompt.out
    assert "most calls passed in a second" in prompt.out
    page = report.read_text()
    assert page.count("<svg") == 2
    assert "http" not in page.replace("http-equiv", "")


def test_mistakes_are_sentences(prompt: Prompt) -> None:
    assert "Say which shape of traffic (steady" in prompt.failure("simulate", "--limit", "1/s")
    assert "--limit '50/s burst 100'" in prompt.failure("simulate", "ramp")
    assert "Did you mean flash-sale?" in prompt.failure("simulate", "flashsale", "--limit", "1/s")
    assert prompt.failure("simulate", "ramp", "--limit", "1/ss").startswith('"1/ss" is not a limit.')
    assert '"wave" is no shape' in prompt.failure("simulate", "wave", "--limit", "1/s")
    assert "a number above 0" in prompt.failure("simulate", "ramp", "--rate", "-1", "--limit", "1/s")


def test_rules_that_apply_to_no_call_are_named(prompt: Prompt, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: each, key: address, missing: skip, limit: 1/s}]")
    assert prompt("simulate", "ramp", "--for", "2s", "--rules", str(rules), "--limit", "1/s") == 0
    assert prompt.err == 'headgate: rules.yaml: the rule "each" (calls have no address) applies to no call.\n'
