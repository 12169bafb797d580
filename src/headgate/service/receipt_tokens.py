"""Receipts that travel: what an answer hands out, so that the caller can come back with it.

A receipt names what was charged and is signed, so that nobody gives back what was never taken. Nothing is kept for
it here: any worker can redeem it, and what was decided by Redis, any service with the same secret. Giving back
works once: the receipt's number is then taken under a count of its own, which lives as long as the charge
matters. What is left of a charge after a part was given back has a receipt of its own.

Laws (tests/service/test_receipt_tokens.py): a receipt that was changed in any bit is refused; one that was used is
refused, by every worker; a refused call has none.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence

import msgspec

from headgate.algorithms.limit import SECOND, Limit
from headgate.enforcement.stored_decision import Written
from headgate.errors import InvalidCharge
from headgate.limit_syntax import parse

NAME = "~receipts"
_MAC = 16
_LONGEST = 2**31  # seconds, 68 years: a log of uses looks back no further than a hundred


class NoReceipt(InvalidCharge):
    """What was shown as a receipt is none of ours."""


class Receipt(msgspec.Struct, array_like=True):
    """A decision's charges, under a number of its own."""

    number: bytes
    parts: list[Written]

    @property
    def key(self) -> str:
        """What its use is counted under."""
        return self.number.hex()

    @property
    def once(self) -> Limit:
        """One use, for as long as anything can be given back: of few different lengths, so that meters are few."""
        last_us = max((part.reset_after_us + part.delay_us for part in self.parts), default=0)
        length = max(60, last_us // SECOND + 1)
        return parse(f"1/{min(1 << (length - 1).bit_length(), _LONGEST)}s log")


class Office:
    """Writes receipts and reads them."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode() or secrets.token_bytes(32)
        self._decode = msgspec.msgpack.Decoder(Receipt).decode

    def written(self, parts: Sequence[Written]) -> str:
        """The text of a receipt."""
        body = msgspec.msgpack.encode(Receipt(secrets.token_bytes(12), list(parts)))
        return _text(self._mac(body) + body)

    def read(self, text: str) -> Receipt:
        """What it says; NoReceipt if it was not written here."""
        try:
            raw = b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except ValueError:
            raw = b""
        mac, body = raw[:_MAC], raw[_MAC:]
        # The text again: base64 leaves bits over at the end, and two texts of one receipt would be one too many.
        if not hmac.compare_digest(mac, self._mac(body)) or _text(raw) != text:
            raise NoReceipt("This receipt was not written by this service, or with another secret.")
        return self._decode(body)

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, body, "sha256")[:_MAC]


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
