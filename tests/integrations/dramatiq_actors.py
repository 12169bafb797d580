"""Dramatiq actors with limits, each of which records its runs in a list on its Redis.

BROKER=redis://... python -m dramatiq tests.integrations.dramatiq_actors
"""

from __future__ import annotations

import os
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from headgate.integrations.dramatiq import ActorLimits, limit
from tests.integrations.task_workers import record

BROKER = os.environ.get("BROKER", "redis://127.0.0.1:1/0")

make_broker: Any = RedisBroker
make_results: Any = Results
broker = make_broker(url=BROKER)
broker.add_middleware(make_results(backend=RedisBackend(url=BROKER)))
broker.add_middleware(CurrentMessage())
broker.add_middleware(ActorLimits(engine=f"{BROKER}?deadline=10s"))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def free(number: int) -> int:
    return number


@dramatiq.actor(limit="10/s burst 1", store_results=True)
def paced(number: int) -> int:
    record("paced", number)
    return number


@dramatiq.actor(limit=["1/hour burst 1"])
def hourly(number: int) -> None:
    record("hourly", number)


@dramatiq.actor(limit=limit("2/hour", key="user_id"))
def mail(user_id: int) -> None:
    record("mail", user_id)


@dramatiq.actor(limit="2/s burst 1", max_retries=2, min_backoff=1, max_backoff=1)
def retried(number: int) -> None:
    message = CurrentMessage.get_current_message()
    assert message is not None
    retries = message.options.get("retries", 0)
    record("retried", number, retries)
    if retries < 2:
        raise ValueError(number)


@dramatiq.actor(limit="1 slot ttl 60s", max_retries=0)
def exclusive(number: int) -> None:
    record("begins", number)
    time.sleep(0.3)
    record("ends", number)
    if number == 0:
        raise ValueError(number)


@dramatiq.actor(limit=limit("2/minute", cost="units"), store_results=True)
def costly(units: int) -> None:
    record("costly", units)
