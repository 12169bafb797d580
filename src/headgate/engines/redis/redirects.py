"""Questions that may take several steps, the same for both shells. (Several slots of a cluster: apart.py.)

`ask` and `send` are the shell's: one question, one reply, awaited or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headgate.algorithms.decision import Outcome, Receipt
from headgate.engines.redis import protocol
from headgate.engines.redis.errors import (
    ClusterBusy,
    ConnectFailed,
    NoScript,
    ReadOnlyReplica,
    Redirected,
    RedisError,
)
from headgate.engines.redis.protocol import BuiltCharge, RedisRequest, RequestBuilder
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.topology import Topology
from headgate.flow import Flow

Ask = Callable[[RedisRequest], Any]

PAUSE = 0.02  # seconds before a cluster that is busy with itself is asked again
DETOURS = 4  # times that a question is sent on at once


def answered(
    topology: Topology,
    discover: Callable[[], Any],
    send: Callable[[ServerAddress, RedisRequest, bool], Any],
    sleep: Callable[[float], Any],
    question: RedisRequest,
    by: float,
    forgot: bool = False,
) -> Flow[Any]:
    """One question, asked of whoever answers for its key, wherever that leads, but not long after `by`.

    It is asked again only where it surely has not been charged: the server said so, or was not reached. `forgot`:
    somebody has said already that the script must be loaded first.
    """
    to: ServerAddress | None = None
    for_now = False
    follow_redirect = 0
    while True:
        address = to or topology.node(question.tag)
        if address is None:
            yield discover
            address = topology.node(question.tag)
        try:
            if address is None:
                raise ClusterBusy("no node answers for the slot of the key")
            if forgot and question.script is not None:
                forgot = False
                yield partial(send, address, RedisRequest(question.script.load, None), False)
            return (yield partial(send, address, question, for_now))
        except NoScript:
            if address is None or question.script is None or time.monotonic() > by:
                raise
            to, forgot = address, True
        except Redirected as told:
            if address is None or time.monotonic() > by:
                raise
            to, for_now = topology.follow_redirect(told, address), told.for_now
            follow_redirect += 1
            if follow_redirect > DETOURS:  # the nodes do not agree yet, and send us in circles
                yield partial(sleep, PAUSE)
        except RedisError as trouble:
            if address is not None:
                topology.suspect(address)
            again = ClusterBusy | ReadOnlyReplica | ConnectFailed if topology.moves else ClusterBusy
            if not isinstance(trouble, again) or time.monotonic() + PAUSE > by:
                raise
            yield partial(sleep, PAUSE)
            to, for_now = None, False


def decide(
    ask: Ask, questions: RequestBuilder, key: str, cost: int, patience_us: int | None, now_us: int
) -> Flow[Outcome]:
    if questions.has_rule_state:
        return (yield from decide_all(ask, [(questions, key, cost)], patience_us, now_us))[0]
    reply = yield partial(ask, questions.decide(key, cost, patience_us, now_us))
    if (server_us := protocol.outside_calendar_us(reply)) is not None:
        reply = yield partial(ask, questions.decide(key, cost, patience_us, server_us))
    return protocol.facts(reply)


def decide_all(
    ask: Ask, charges: Sequence[BuiltCharge], patience_us: int | None, now_us: int, commit: bool = True
) -> Flow[list[Outcome]]:
    """Several charges, decided by one script."""
    mode = protocol.COMMIT if commit else protocol.TOLD
    reply = yield partial(ask, protocol.together(charges, patience_us, now_us, mode))
    if (server_us := protocol.any_outside_calendar_us(reply)) is not None:
        reply = yield partial(ask, protocol.together(charges, patience_us, server_us, mode))
    return protocol.all_facts(reply, charges)


def refund(
    ask: Ask, questions: RequestBuilder, key: str, units: int, receipt: Receipt, cancel: bool, now_us: int
) -> Flow[Outcome]:
    reply = yield partial(ask, questions.refund(key, units, receipt, cancel, now_us))
    if (server_us := protocol.outside_calendar_us(reply)) is not None:
        reply = yield partial(ask, questions.refund(key, units, receipt, cancel, server_us))
    return protocol.parse_refund(reply)
