"""envoyproxy/ratelimit's own files, followed as they are."""

import logging
import os
from pathlib import Path

import pytest

from headgate import Limiter
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.errors import InvalidRule
from headgate.rules.distribution.envoy_descriptors import FolderSource

EDGE = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2, name: calm, replaces: [{name: all}]}
  - key: plan
    value: free
    detailed_metric: true
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1}
"""
MAIL = EDGE.replace("domain: edge", "domain: mail").replace("requests_per_unit: 2", "requests_per_unit: 3")


def passes(limiter: RuleLimiter, **attributes: str) -> int:
    return sum(limiter.check(attributes).allowed for _ in range(5))


def test_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(EDGE)
    with caplog.at_level(logging.INFO), Limiter.from_rules(path) as limiter:
        assert passes(limiter, domain="edge", descriptor="user", user="ann") == 2
        assert passes(limiter, domain="edge", descriptor="plan/user", plan="free", user="ann") == 1
        assert passes(limiter, domain="mail", descriptor="user", user="ann") == 5
        assert limiter.check({"domain": "edge", "descriptor": "user", "user": "ann"}).rule == "calm"
    assert f"{path}:8: detailed_metric is about metrics: it is left out." in caplog.messages


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(EDGE)
    (tmp_path / "mail.yml").write_text(MAIL)
    (tmp_path / "README.md").write_text("not ours")
    with Limiter.from_rules(tmp_path) as limiter:
        assert passes(limiter, domain="edge", descriptor="user", user="ann") == 2
        assert passes(limiter, domain="mail", descriptor="user", user="ann") == 3
        assert passes(limiter, domain="mail", descriptor="plan/user", plan="free", user="ann") == 1
        assert limiter.check({"domain": "mail", "descriptor": "user", "user": "ann"}).rule == "mail.calm"


def test_a_domain_may_be_called_what_no_rule_can_be(tmp_path: Path) -> None:
    """Its rules are, as far as they can; those of two domains never share a name."""
    many = "".join(
        f"  - key: k{number}\n    rate_limit: {{unit: day, requests_per_unit: 1}}\n" for number in range(8)
    )
    for number, domain in enumerate(("envoy/edge shop", "envoy/edge-shop", "x" * 70)):
        (tmp_path / f"{number}.yaml").write_text(f"domain: {domain}\ndescriptors:\n{many}")
    with Limiter.from_rules(tmp_path) as limiter:
        for domain in ("envoy/edge shop", "envoy/edge-shop", "x" * 70):
            assert passes(limiter, domain=domain, descriptor="k7", k7="a") == 1
        assert (
            limiter.check({"domain": "envoy/edge shop", "descriptor": "k7", "k7": "a"}).rule
            == "envoy-edge-shop.k7"
        )


def test_a_folder_that_changes_has_another_signature(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)
    seen = set()
    (tmp_path / "edge.yaml").write_text(EDGE)
    seen.add(source.signature())
    (tmp_path / "mail.yaml").write_text(MAIL)
    seen.add(source.signature())
    os.rename(tmp_path / "mail.yaml", tmp_path / "post.yaml")
    seen.add(source.signature())
    (tmp_path / "post.yaml").write_text(MAIL + "\n")
    seen.add(source.signature())
    assert len(seen) == 4


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRule, match=r"There is no file that ends with \.yaml or \.yml"):
        Limiter.from_rules(tmp_path)
    (tmp_path / "edge.yaml").write_text(EDGE)
    (tmp_path / "more.yaml").write_text(EDGE)
    with pytest.raises(InvalidRule, match=r"more\.yaml: the domain edge is in .*edge\.yaml already"):
        Limiter.from_rules(tmp_path)
    (tmp_path / "more.yaml").write_text("domain: mail\ndescriptors:\n  - key: a\n    ratelimit: {unit: day}\n")
    with pytest.raises(InvalidRule, match=r'more\.yaml:4: "ratelimit" is not a key of a descriptor'):
        Limiter.from_rules(tmp_path)
    (tmp_path / "more.yaml").write_text("domain: mail\ndescriptors:\n  - value: x\n")
    with pytest.raises(InvalidRule, match=r"more\.yaml:3: this descriptor has no key"):
        Limiter.from_rules(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("domain: mail\nratelimit: [{key: a}]\n", r'\.yaml:2: "ratelimit" is not a key of the file'),
        ("domain: mail\ndescriptor: [{key: a}]\n", r"\.yaml:2: .* Did you mean descriptors\?"),
        ("domian: mail\ndescriptors: [{key: a}]\n", r"\.yaml:1: .* Did you mean domain\?"),
    ],
)
def test_a_file_with_a_misspelled_key_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRule, match=sentence):
        Limiter.from_rules(path)


def test_a_rulebook_of_ours_may_use_domains(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - name: all\n    when:\n      domain: edge\n    limit: 2/day fixed\n")
    with Limiter.from_rules(path) as limiter:
        assert passes(limiter, domain="edge") == 2
