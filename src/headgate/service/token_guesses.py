"""Limits the guessing of tokens, at the login of the dashboard and at the admin API together.

From one address (one network of IPv6) a worker takes GUESSES wrong tokens; then every token from there waits, so
that a right guess is not found any faster. But strangers must not lock out the holder of a token, with whom they
share an address: where a token was right within PROVEN_S, it goes on to be taken, whatever else comes from there.

Laws (tests/service/admin/test_token_guesses.py): login and API share one count; a right token costs nothing; an
address locks out no other; a token that was right at an address before is not locked out there.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import Final

from headgate.errors import InvalidRule
from headgate.limiter import Limiter

GUESSES: Final = "5/15m"
PROVEN_S: Final = 24 * 3600
_MAX_PROVEN: Final = 10_000


class TooManyGuesses(InvalidRule):
    """This address has shown too many wrong tokens; `retry_after` says when it may try again."""

    def __init__(self, retry_after: float) -> None:
        minutes = math.ceil(retry_after / 60)
        super().__init__(
            f"Too many wrong tokens came from this address. Wait {minutes} minute{'s' if minutes > 1 else ''}."
        )
        self.retry_after = retry_after


class TokenGuesses:
    """Counts wrong tokens by address, and notes where tokens were right."""

    def __init__(self) -> None:
        self._limiter = Limiter(GUESSES, name="admin-tokens")
        self._proven: OrderedDict[tuple[str, str], float] = (
            OrderedDict()
        )  # by role and address, when it was shown last

    def count(self, address: str, role: str | None) -> None:
        """Counts a token that an address has shown: the right one of a role, or a wrong one (None).

        Raises TooManyGuesses if it is not to be taken, right or wrong.
        """
        now_s = time.monotonic()
        proven_s = float("-inf") if role is None else self._proven.get((role, address), float("-inf"))
        if now_s - proven_s > PROVEN_S:
            guess = self._limiter.take(address)
            if not guess.allowed:
                raise TooManyGuesses(guess.retry_after or 0)
            if role is None:
                return
            self._limiter.refund(guess)
        assert role is not None
        self._proven[role, address] = now_s
        self._proven.move_to_end((role, address))
        if len(self._proven) > _MAX_PROVEN:
            self._proven.popitem(last=False)
