"""The rulebook of a service that is started without one: enough to see it decide."""

from __future__ import annotations

from typing import Any

SAMPLE_RULEBOOK: dict[str, Any] = {
    "name": "sample",
    "rules": [
        {
            "name": "login",
            "when": {"method": "POST", "path": "/login"},
            "key": "address",
            "missing": "one",
            "limit": "5/minute",
        },
        {"name": "user", "key": "user", "missing": "skip", "limit": "10/s burst 20; 1000/hour sliding"},
        {"name": "everything", "limit": "1000/s burst 2000"},
    ],
}


def example_command(url: str) -> str:
    """Returns a command line that tries the service."""
    body = """{"attributes": {"method": "POST", "path": "/login", "address": "192.0.2.7"}}"""
    return f"curl -s {url}/v1/check -d '{body}'"
