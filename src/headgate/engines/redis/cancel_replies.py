"""Reads the replies to cancelled reservations, and notes those that gave nothing back yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.algorithms.decision import AT_US
from headgate.engines.pending_cancellations import PendingCancellations
from headgate.engines.redis.protocol import RedisRequest


def was_given_back(pending: PendingCancellations[RedisRequest], request: RedisRequest, reply: Any) -> bool:
    """Returns whether a cancellation gave anything back; if not, notes it as pending."""
    # Fewer elements: an error, or outside of a calendar window.
    if request.queue_place is None or not isinstance(reply, list) or len(reply) <= 7:
        return False
    if reply[7] == 1:
        return True
    pending.note(request, reply[AT_US])
    return False


def all_cancelled(
    pending: PendingCancellations[RedisRequest], requests: Sequence[RedisRequest], replies: Sequence[Any]
) -> bool:
    """Returns whether all of several cancellations gave something back; notes those that did not."""
    results = [was_given_back(pending, *each) for each in zip(requests, replies, strict=True)]
    return all(results)
