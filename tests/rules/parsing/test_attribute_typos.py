"""Attributes that look misspelled are warned of; those that an application may well pass are not."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from headgate import Limiter
from headgate.errors import InvalidRulebook
from headgate.rules import load
from headgate.service import sample_rules
from tests.rules.distribution.watcher_harness import eventually

ROOT = Path(__file__).parents[3]
WELLFORMED = sorted(ROOT.glob("tests/rules/wellformed/*"))
SHIPPED = [
    path
    for folder in ("docs", "deploy", "nginx", "tests/nginx/demo", "benchmarks")
    for path in sorted(ROOT.glob(f"{folder}/**/*.yaml"))
    if re.search(r"^rules:", path.read_text(), re.M)
]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

LIMITS_NOBODY = """\
rules:
  - name: login
    when: {methods: POST, pth: /login}
    key: ip
    missing: skip
    limit: 5/minute
"""


def book(**rule: Any) -> Any:
    return {"rules": [{"name": "r", "missing": "skip", "limit": "1/s", **rule}]}


def warnings(**rule: Any) -> list[str]:
    return [sentence for _, sentence in load.from_mapping(book(**rule)).warnings]


def test_a_rulebook_that_limits_nobody_is_warned_of_line_by_line() -> None:
    book = load.parse(LIMITS_NOBODY, source="rules.yaml")
    assert [warning.split(" If")[0] for warning in book.located_warnings] == [
        'rules.yaml:3: rule "login": no gateway sets the attribute "methods": did you mean method?',
        'rules.yaml:3: rule "login": no gateway sets the attribute "pth": did you mean path?',
        'rules.yaml:4: rule "login": no gateway sets the attribute "ip": did you mean address?',
    ]
    with pytest.raises(InvalidRulebook) as raised:
        book.strict()
    assert raised.value.messages == book.located_warnings


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ip", "address"), ("client_ip", "address"), ("remote_addr", "address"), ("adress", "address"),
        ("addresses", "address"), ("methods", "method"), ("mehtod", "method"), ("verb", "method"),
        ("uri", "path"), ("url", "path"), ("pth", "path"), ("paths", "path"), ("hots", "host"),
        ("hostname", "host"), ("users", "user"), ("plann", "plan"), ("user_agent", "header.user-agent"),
        ("referrer", "header.referer"),
    ],
)  # fmt: skip
def test_a_typo_suggests_the_attribute(name: str, meant: str) -> None:
    (warning,) = warnings(key=name)
    assert f'"{name}": did you mean {meant}?' in warning


@pytest.mark.parametrize(
    "name",
    [
        "tenant", "sku", "cost", "user_id", "username", "sender", "service", "account", "api_key", "route", "port",
        "plant_id", "domain", "remote_address", "authority", "generic_key", "destination_cluster", "session",
        "tokens", "region", "bath", "country", "team", "project", "model", "endpoint", "id", "key",
    ],
)  # fmt: skip
def test_plausible_application_attributes_cause_no_warning(name: str) -> None:
    assert warnings(key=name) == []


def test_wherever_a_rule_names_an_attribute() -> None:
    places: list[dict[str, Any]] = [
        {"when": {"pth": "/a"}},
        {"when": {"any": [{"user": "a"}, {"not": {"pth": "/b"}}]}},
        {"except": {"pth": "/a"}},
        {"key": ["user", "pth"]},
        {"cost": "pth"},
        {"cost": {"by": "pth", "cases": {"a": 1}, "otherwise": 2}},
        {"limit": {"by": "pth", "cases": {"a": "1/s"}, "otherwise": "2/s"}},
        {"candidate": {"by": "pth", "cases": {"a": "1/s"}, "otherwise": "2/s"}},
    ]
    for place in places:
        (warning,) = warnings(**place)
        assert 'rule "r": ' in warning
        assert "did you mean path?" in warning


def test_captured_path_segments_are_attributes_and_typo_suggestions() -> None:
    path = {"path": "/shops/{tenant}/items/{sku}"}
    assert warnings(when=path, key=["tenant", "sku"]) == []
    (warning,) = warnings(when=path, key="tennant")
    assert "did you mean tenant?" in warning
    assert warnings(when={"path": "/from/{ip}"}, key="ip") == []
    assert warnings(key="tennant") == []


def test_a_condition_of_many_rules_is_warned_of_once() -> None:
    rules = [{"name": f"r{number}", "when": "login", "limit": "1/s"} for number in range(3)]
    book = load.from_mapping({"conditions": {"login": {"pth": "/login"}}, "rules": rules})
    assert len(book.warnings) == 1
    defaults = {"missing": "skip", "except": {"ip": "10.0.0.1"}}
    two = [{"name": name, "limit": "1/s"} for name in ("a", "b")]
    assert len(load.from_mapping({"defaults": defaults, "rules": two}).warnings) == 1


def test_attributes_that_the_rulebook_lists_cause_no_warning() -> None:
    listed = book(key="ip") | {"attributes": ["ip"]}
    assert load.from_mapping(listed).warnings == ()
    with pytest.raises(InvalidRulebook, match="not one of the attributes that the rulebook lists"):
        load.from_mapping(book(key="ip") | {"attributes": ["sku"]})


def test_rules_on_envoys_descriptors_are_not_warned_of() -> None:
    assert warnings(when={"descriptor": "user_agent/ip"}, key=["user_agent", "ip"]) == []


@pytest.mark.parametrize("path", [*WELLFORMED, *SHIPPED], ids=lambda path: path.name)
def test_no_rulebook_that_is_right_is_warned_of(path: Path) -> None:
    assert load.read(path).warnings == ()


def test_neither_are_those_of_the_documentation_and_the_sample() -> None:
    count = 0
    for page in PAGES:
        for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            if "\ncases:" not in text and "\nlimiters:" not in text:  # cases of rules and of simulations
                book = load.parse(f"rules:\n{text}" if text.startswith("- ") else text)
                assert book.warnings == (), page
                count += 1
    assert count > 20
    assert load.from_mapping(sample_rules.SAMPLE_RULEBOOK).warnings == ()


def test_a_limiter_logs_each_version_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(LIMITS_NOBODY)
    with caplog.at_level(logging.WARNING, "headgate"):
        limiter = Limiter.from_rules(path)
        try:
            assert len(caplog.messages) == 3
            assert caplog.messages[2].startswith(f'headgate: {path}:4: rule "login": ')
            for _ in range(3):
                limiter.check({"method": "POST", "path": "/login"})
            path.write_text("# moved\n" + LIMITS_NOBODY.replace("methods", "method").replace("pth", "path"))
            eventually(lambda: len(caplog.messages) == 4)
            assert caplog.messages[3].startswith(f'headgate: {path}:5: rule "login": ')
        finally:
            limiter.close()


def test_a_mapping_is_warned_of_by_its_path(caplog: pytest.LogCaptureFixture) -> None:
    Limiter.from_rules(book(key="ip")).close()
    (message,) = caplog.messages
    assert message.startswith('headgate: rules[0].key: rule "r": no gateway sets the attribute "ip"')


def test_documents_of_gateways_carry_them() -> None:
    from headgate.gateway.bundle import compile_bundle

    bundle = compile_bundle(load.parse(LIMITS_NOBODY, source="rules.yaml"), 1_700_000_000_000_000)
    assert len(json.loads(json.dumps(bundle))["warnings"]) == 3
