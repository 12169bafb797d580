"""Requests that may take several steps, for both the sync and the async engine. (Several slots: cross_slot.py.)

`execute` and `send` are the engine's: one request, one reply, awaited or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headgate.algorithms.decision import Outcome, Receipt
from headgate.engines.redis import protocol, take_all
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

Execute = Callable[[RedisRequest], Any]

RETRY_PAUSE_S = 0.02  # before a request to a busy cluster is sent again
MAX_IMMEDIATE_REDIRECTS = 4  # after more of them we pause before the next


def send_with_redirects(
    topology: Topology,
    discover: Callable[[], Any],
    send: Callable[[ServerAddress, RedisRequest, bool], Any],
    sleep: Callable[[float], Any],
    request: RedisRequest,
    deadline_at: float,
    load_first: bool = False,
) -> Flow[Any]:
    """Sends a request to the owner of its key, follows redirections and retries, but not long after `deadline_at`.

    It is sent again only if it surely was not charged: the server said so, or was not reached. `load_first`: the
    server has already replied that the script is not loaded.
    """
    target: ServerAddress | None = None
    asking = False
    redirect_count = 0
    while True:
        address = target or topology.node(request.tag)
        if address is None:
            yield discover
            address = topology.node(request.tag)
        try:
            if address is None:
                raise ClusterBusy("no node answers for the slot of the key")
            if load_first and request.script is not None:
                load_first = False
                yield partial(send, address, RedisRequest(request.script.load, None), False)
            return (yield partial(send, address, request, asking))
        except NoScript:
            if address is None or request.script is None or time.monotonic() > deadline_at:
                raise
            target, load_first = address, True
        except Redirected as redirect:
            if address is None or time.monotonic() > deadline_at:
                raise
            target, asking = topology.follow_redirect(redirect, address), redirect.is_temporary
            redirect_count += 1
            if redirect_count > MAX_IMMEDIATE_REDIRECTS:  # the nodes do not agree yet: avoid a redirect loop
                yield partial(sleep, RETRY_PAUSE_S)
        except RedisError as error:
            if address is not None:
                topology.suspect(address)
            retryable = ClusterBusy | ReadOnlyReplica | ConnectFailed if topology.can_fail_over else ClusterBusy
            if not isinstance(error, retryable) or time.monotonic() + RETRY_PAUSE_S > deadline_at:
                raise
            yield partial(sleep, RETRY_PAUSE_S)
            target, asking = None, False


def decide(execute: Execute, builder: Any, key: Any, cost: Any, patience_us: int | None, now_us: int) -> Flow[Any]:
    """Decides a take or a reservation on one key, or by a JointBuilder a take from several.

    If the server's clock is outside of the calendar window, it is sent again with the window at the server's time.
    """
    if builder.has_rule_state:
        return (yield from decide_all(execute, [(builder, key, cost)], patience_us, now_us))[0]
    reply = yield partial(execute, builder.decide(key, cost, patience_us, now_us))
    if (server_us := protocol.outside_calendar_us(reply)) is not None:
        reply = yield partial(execute, builder.decide(key, cost, patience_us, server_us))
    return builder.parse(reply)


def decide_all(
    execute: Execute, charges: Sequence[BuiltCharge], patience_us: int | None, now_us: int, commit: bool = True
) -> Flow[list[Outcome]]:
    """Decides several charges by one script."""
    mode = take_all.COMMIT if commit else take_all.DRY_RUN
    reply = yield partial(execute, take_all.joint_request(charges, patience_us, now_us, mode))
    if (server_us := take_all.any_outside_calendar_us(reply)) is not None:
        reply = yield partial(execute, take_all.joint_request(charges, patience_us, server_us, mode))
    return take_all.parse_outcomes(reply, charges)


def refund(
    execute: Execute, builder: RequestBuilder, key: str, units: int, receipt: Receipt, cancel: bool, now_us: int
) -> Flow[Outcome]:
    """Refunds units of a charge, or cancels a reservation."""
    return (
        yield from _execute_with_calendar(execute, partial(builder.refund, key, units, receipt, cancel), now_us)
    )


def surcharge(
    execute: Execute, builder: RequestBuilder, key: str, units: int, receipt: Receipt, now_us: int
) -> Flow[Outcome]:
    """Charges units that a charge used beyond its cost."""
    return (yield from _execute_with_calendar(execute, partial(builder.surcharge, key, units, receipt), now_us))


def _execute_with_calendar(execute: Execute, build: Callable[[int], RedisRequest], now_us: int) -> Flow[Outcome]:
    """Sends a request with the calendar around `now_us`, or around the server's time if that lies outside."""
    reply = yield partial(execute, build(now_us))
    if (server_us := protocol.outside_calendar_us(reply)) is not None:
        reply = yield partial(execute, build(server_us))
    return protocol.parse_refund(reply)
