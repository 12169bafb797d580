"""Counts the requests in the access log of one nginx by their result.

Pure: lines in, counts out. A line is what `headgate nginx conf` has nginx write, and the buyer's cookie:

    127.0.0.1 [2026-03-01T12:00:00+00:00] "POST /buy/phone HTTP/1.1" 429 242 0.000
        gate=REJECTED rule=each-item remaining=0 dry_run= buyer=buyer-7
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

BUYER_RULE, ITEM_RULE = "each-buyer", "each-item"
BOT = "bot"

_line = re.compile(
    r'"\w+ /buy/(?P<item>\w+) [^"]*" (?P<status>\d+) '
    r".* gate=(?P<gate>\w*) rule=(?P<rule>\S*) \S+ \S+ buyer=(?P<buyer>\S*)"
)


class LogCounts:
    """Counts that grow."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()  # by item
        self.sold: Counter[str] = Counter()  # by item: what was let pass
        self.refused: Counter[str] = Counter()  # by rule
        self.bot_requests = self.bot_sold = 0
        self.odd: list[str] = []  # lines that are no sale and no refusal of a rule

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._count(line)

    def __add__(self, other: LogCounts) -> LogCounts:
        both = LogCounts()
        for one in (self, other):
            both.requests += one.requests
            both.sold += one.sold
            both.refused += one.refused
            both.bot_requests += one.bot_requests
            both.bot_sold += one.bot_sold
            both.odd += one.odd
        return both

    def _count(self, line: str) -> None:
        match = _line.search(line)
        if match is None:
            self.odd.append(line)
            return
        item, status, gate, rule, buyer = match.groups()
        self.requests[item] += 1
        self.bot_requests += buyer == BOT
        if (gate, status) == ("PASSED", "200"):
            self.sold[item] += 1
            self.bot_sold += buyer == BOT
        elif (gate, status) == ("REJECTED", "429"):
            self.refused[rule] += 1
        else:
            self.odd.append(line)
