"""RecordedCall: one call of a log, in the form that rules read.

Attributes are in normal form already (rules/attributes.py), with one exception: a hostname is a valid address
here, because many logs hold hostnames in place of addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headgate.rules.attributes import Attributes

if TYPE_CHECKING:
    from headgate.traffic.formats.decision_log import DecisionRecord


class RecordedCall(NamedTuple):
    """A call of a log: when it came, its attributes, and what is known of its answer.

    >>> call = RecordedCall(1_700_000_000_000_000, Attributes(address="192.0.2.7"))
    >>> call.attributes["address"], call.status
    ('192.0.2.7', None)
    """

    time_us: int
    attributes: Attributes
    status: int | None = None  # of the response
    duration_us: int | None = None
    cost: int | None = None  # that the caller stated
    line: int = 0  # in its file
    record: DecisionRecord | None = None  # of a decision log
