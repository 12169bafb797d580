"""Runs the service that is fuzzed, and checks after every batch that it still answers.

It lives; nothing in its log is a mistake of its own; a valid question of every kind has the right answer; it has
not grown by more than GROWTH since it was warm. Every connection is answered or closed within SECONDS of its last
byte: the kinds look at that, for each input.
"""

import os
import re
from pathlib import Path
from typing import Any

import grpc
from envoy.service.ratelimit.v3 import rls_pb2  # type: ignore[import-untyped]

from headgate.service.envoy import rls
from tests.service.service_harness import Service

SECONDS = 8.0  # of a machine that is busy with nothing else than this
GROWTH = (
    160 * 2**20
)  # bytes; counts and what is remembered of texts are bounded, and no leak stays below it for long
_MISTAKE = re.compile(
    r"Traceback|could not be answered|panicked|Unexpected|never retrieved|core dumped|Fatal|^[EIWF]\d{4} ", re.M
)

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "user", "key": "user", "missing": "skip", "limit": "1000/s burst 2000; 100000/hour sliding"},
        {"name": "seen", "key": ["address/24/48", "path"], "limit": "50/s log", "mode": "shadow"},
        {"name": "host", "key": "host", "missing": "skip", "limit": "100000/m fixed", "candidate": "5/s"},
        {"name": "tokens", "when": {"tokens": True}, "key": "plan", "missing": "one", "limit": "9/s",
        "cost": "tokens"},
        {"name": "held", "when": {"path": "/held/**"}, "limit": "20 slots ttl 1s"},
        {"name": "slow", "when": {"path": "/slow"}, "limit": "200/s queue 5"},
        {"name": "smooth", "when": {"path": "/smooth/{sku}"}, "key": "sku", "limit": "100/s smooth"},
        {
            "name": "closed",
            "when": {"path": "/closed"},
            "key": "cookie.sid",
            "missing": "deny",
            "limit": "1/s",
            "refuse": {"status": 403, "body": "no", "type": "text/plain"},
            "lockout": {"after": 3, "within": "1s", "for": "1s"},
        },
        {"name": "plans", "when": {"plan": True}, "limit": {"by": "plan", "cases": {"free": "9/s"},
        "otherwise": "unlimited"}},
        # Counts each user apart: a fuzzed settlement may put a user into debt for a year, no valid question.
        {"name": "all", "key": "user", "missing": "one", "limit": "1000000/s burst 9000000"},
    ]
}  # fmt: skip


class ServiceProbe:
    """Looks at one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._read = 0
        self.first_kb = 0

    @property
    def kb(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.service.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def warm(self) -> None:
        self.first_kb = self.kb

    def faults(self) -> list[str]:
        """Returns what is wrong with the service now, in words."""
        problems = []
        if (code := self.service.code) is not None:
            return [f"the service ended with {code}: {self.service.output[-2000:]}"]
        output = self.service.output
        new, self._read = output[self._read :], len(output)
        if mistake := _MISTAKE.search(new):
            problems.append(f"it logged a mistake: {new[max(0, mistake.start() - 300) : mistake.end() + 1500]}")
        if self.kb - self.first_kb > GROWTH // 1024:
            problems.append(f"it grew from {self.first_kb} to {self.kb} KiB")
        try:
            problems += self._answers()
        except (OSError, grpc.RpcError, AssertionError) as error:
            problems.append(f"a valid question is not answered: {error!r}")
        return problems

    def _answers(self) -> list[str]:
        number = os.urandom(4).hex()
        response = self.service.check(user=number)
        if not response["allowed"] or (response["rule"], response["remaining"]) != ("user", 1999):
            return [f"a valid check is answered {response}"]
        with grpc.insecure_channel(self.service.grpc) as channel:
            should_rate_limit: Any = channel.unary_unary(rls.PATH)
            request = rls_pb2.RateLimitRequest(domain="d")
            request.descriptors.add().entries.add(key="user", value=f"{number}-2")
            answer = rls_pb2.RateLimitResponse.FromString(
                should_rate_limit(request.SerializeToString(), timeout=SECONDS)
            )
        (status,) = answer.statuses
        if (answer.overall_code, status.limit_remaining) != (rls_pb2.RateLimitResponse.OK, 1999):
            return [f"a valid descriptor is answered {answer}"]
        return []
