"""The rulebook of the service in its benchmarks."""

from typing import Any

BOOK: dict[str, Any] = {
    "rules": [
        {"name": f"rule-{number}", "when": {"path": f"/{number}"}, "limit": "1000000/s"} for number in range(4)
    ]
    + [{"name": "user", "key": "user", "missing": "skip", "limit": "1000000/s"}]
    + [{"name": f"d{number}", "key": f"d{number}", "missing": "skip", "limit": "1000000/s"} for number in range(4)]
    + [{"name": "address", "key": "address", "missing": "skip", "limit": "1000000/s"}]
}
