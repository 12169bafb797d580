"""Signs and verifies receipt tokens, with which a caller gives back what an answer charged.

A receipt lists what was charged and is signed, so that no caller gives back what was never taken. The service
stores nothing for it: any worker can redeem it, and if Redis decided, any service with the same secret. Giving
back works once: the receipt's nonce is then taken under a limit of its own, which lives as long as the charge
matters. After a partial refund, the rest of the charge gets a receipt of its own.

Settling may charge more, which would matter again and again. So a receipt settles more than it charged only for as
long as a use of it would be remembered: MIN_LIFE_S, or longer if the charge matters longer.

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
from headgate.enforcement.stored_decision import ChargeReceipt
from headgate.errors import InvalidCharge
from headgate.limit_syntax import parse
from headgate.service.calls_in_flight import CallId

METER_NAME = "~receipts"
_MAC_BYTES = 16
MIN_LIFE_S = 1000  # a call may stream for minutes before its cost is known
_MAX_PERIOD_S = 2**31  # 68 years: the log of uses looks back no further than a hundred


class InvalidReceipt(InvalidCharge):
    """A receipt token that this service did not sign."""


class ReceiptNotUsable(InvalidCharge):
    """A valid receipt that does not allow this action, or not any more."""


class DecisionReceipt(msgspec.Struct, array_like=True):
    """The charges of a decision, with a random nonce; and its calls, if adaptive rules let it pass."""

    nonce: bytes
    charges: list[ChargeReceipt]
    call: CallId | None = None  # in flight under adaptive rules

    @property
    def key(self) -> str:
        """The key under which its use is counted."""
        return self.nonce.hex()

    @property
    def one_use_limit(self) -> Limit:
        """One use for as long as anything can be given back or charged."""
        return parse(f"1/{self._life_s}s log")

    @property
    def _life_s(self) -> int:
        """For how long a use is remembered; in few lengths, so that there are few meters."""
        last_us = max((charge.reset_after_us + charge.delay_us for charge in self.charges), default=0)
        seconds = max(MIN_LIFE_S, last_us // SECOND + 1)
        return min(1 << (seconds - 1).bit_length(), _MAX_PERIOD_S)

    def check_age(self, now_us: int) -> None:
        """Raises ReceiptNotUsable if an earlier use of the receipt may be forgotten by now."""
        age_s = max((now_us - charge.at_us for charge in self.charges), default=0) // SECOND
        if age_s >= self._life_s:
            raise ReceiptNotUsable(
                f"This receipt is {age_s} s old, and charges more only for {self._life_s} s: charge the rest by a "
                "check."
            )


class ReceiptSigner:
    """Writes receipt tokens and reads them."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode() or secrets.token_bytes(32)
        self._decode = msgspec.msgpack.Decoder(DecisionReceipt).decode

    def write(self, charges: Sequence[ChargeReceipt], call: CallId | None = None) -> str:
        """Returns the token of a new receipt for these charges and calls."""
        body = msgspec.msgpack.encode(DecisionReceipt(secrets.token_bytes(12), list(charges), call))
        return _base64(self._mac(body) + body)

    def read(self, text: str) -> DecisionReceipt:
        """Returns the receipt of a token; raises InvalidReceipt if it was not signed here."""
        try:
            raw = b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except ValueError:
            raw = b""
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        # Encoded again: base64 has unused bits at its end, so one receipt would have several valid tokens.
        if not hmac.compare_digest(mac, self._mac(body)) or _base64(raw) != text:
            raise InvalidReceipt("This receipt was not written by this service, or with another secret.")
        return self._decode(body)

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, body, "sha256")[:_MAC_BYTES]


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
