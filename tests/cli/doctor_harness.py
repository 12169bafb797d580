"""Harness of doctor tests: a rulebook, and findings by the name of their check."""

from typing import Any

from headgate.operations.finding import ERROR, OK, WARNING
from tests.cli.conftest import Prompt

Found = dict[str, Any]

BOOK = """\
rules:
  - name: search
    when: {path: /search}
    key: address
    missing: skip
    limit: 100/minute
  - name: export
    when: {path: /export}
    key: user
    missing: skip
    limit: 5/hour
"""


def examined(prompt: Prompt, *words: str, code: int = 0) -> dict[str, Found]:
    """Returns doctor's findings by the name of their check; of several the gravest."""
    findings: list[Found] = prompt.json("doctor", *words, code=code)["findings"]
    findings.sort(key=lambda finding: [OK, WARNING, ERROR].index(finding["level"]))
    return {finding["check"]: finding for finding in findings}
