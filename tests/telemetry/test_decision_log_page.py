"""The reference of the decision log lists the fields that the library and nginx write, and no others."""

from __future__ import annotations

import re

from tests.repo_rules.repository import ROOT

WRITERS = (
    "src/headgate/telemetry/decision_record.py",
    "src/headgate/telemetry/single_verdict_line.py",
    "src/headgate/telemetry/decision_log.py",
    "nginx/lib/resty/headgate/request/decision_record.lua",
)
PATTERNS = (
    r'[{,\s]\\?"([a-z_]+)\\?":',  # in a dict or in JSON
    r'\b(?:record|fields|verdict)\["(\w+)"\]',
    r"_put_record\(.*\b(\w+)=",  # by keyword
)
LOG_FORMAT = "src/headgate/gateway/nginx_conf.py", r"\$headgate_decision,.*"
IN_PROSE = {"limit_change"}


def documented_fields() -> set[str]:
    """Returns the names in the first column of the tables."""
    page = (ROOT / "docs/reference/decision-log.md").read_text("utf-8")
    cells = re.findall(r"^\| (`.+?`) \|", page, re.M)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def written_fields() -> set[str]:
    """Returns the names that the writers put into records."""
    written = set()
    path, pattern = LOG_FORMAT
    log_format = re.findall(pattern, (ROOT / path).read_text("utf-8"))
    for code in (*log_format, *((ROOT / path).read_text("utf-8") for path in WRITERS)):
        written |= {name for pattern in PATTERNS for name in re.findall(pattern, code)}
    return written - IN_PROSE


def test_every_field_is_documented_and_exists() -> None:
    assert written_fields() == documented_fields()
