"""Reads what the server did about cancelled places, and notes those that are stuck. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.algorithms.decision import AT_US
from headgate.engines.pending_cancellations import PendingCancellations
from headgate.engines.redis.protocol import RedisRequest


def given(stuck: PendingCancellations[RedisRequest], question: RedisRequest, reply: Any) -> bool:
    """Whether a cancellation gave anything back; if not, it is noted among those that are stuck."""
    if (
        question.place is None or not isinstance(reply, list) or len(reply) <= 7
    ):  # trouble, or outside of a calendar
        return False
    if reply[7] == 1:
        return True
    stuck.note(question, reply[AT_US])
    return False


def all_given(
    stuck: PendingCancellations[RedisRequest], questions: Sequence[RedisRequest], replies: Sequence[Any]
) -> bool:
    """The same, of several."""
    gave = [given(stuck, *each) for each in zip(questions, replies, strict=True)]
    return all(gave)
