"""A Celery application with limited tasks, each of which records its runs in a list on its Redis.

BROKER=redis://... python -m celery -A tests.integrations.celery_tasks worker
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, signals

from headgate.integrations.celery import limit, rate_limits
from tests.integrations.task_workers import record

BROKER = os.environ.get("BROKER", "redis://127.0.0.1:1/0")

app = Celery("shop", broker=BROKER, backend=BROKER)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("VISIBILITY_TIMEOUT", "3600")),
        # How often a worker looks for messages that were not acknowledged in time: every second, not every 100 s.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    task_acks_late=os.environ.get("ACKS_LATE") == "1",
)


@app.task
def free(number: int) -> int:
    record("free", number)
    return number


@app.task
def total(numbers: list[int]) -> int:
    record("total", sum(numbers))
    return sum(numbers)


@app.task
@limit("10/s burst 1")
def paced(number: int) -> int:
    record("paced", number)
    time.sleep(0.2)  # so that one process is too few for 10 per second
    return number


@app.task
@limit("1/s burst 1")
def ordered(number: int) -> None:
    record("ordered", number)


@app.task
@limit("1/2s burst 1")
def delivered(number: int) -> None:
    record("delivered", number)


@signals.task_prerun.connect
def count_delivery(sender: Any = None, args: Any = (), **_: object) -> None:
    """Records each delivery of `delivered` to a process, also those that are put back."""
    if sender == delivered:
        record("delivery", args[0])


@app.task
@limit("1/hour burst 1")
def hourly(number: int) -> None:
    record("hourly", number)


@app.task
@limit("2/hour", key="user_id")
@limit("4/hour", name="mails")
def mail(user_id: int) -> None:
    record("mail", user_id)


@app.task(bind=True, max_retries=2)
@limit("2/s burst 1")
def retried(self: Any, number: int) -> int:
    record("retried", number, self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return number


@app.task(autoretry_for=(ZeroDivisionError,), max_retries=1, default_retry_delay=0)
@limit("2/s burst 1")
def dividing(number: int) -> float:
    record("dividing", number)
    return number / 0


@app.task
@limit("1/7s burst 1")
def slow(number: int) -> None:
    record("slow", number)


@app.task
@limit("1/5s burst 1; 100/day log", name="revocable")
def revocable(number: int) -> None:
    record("revocable", number)


@app.task
@limit("1 slot ttl 60s")
def exclusive(number: int, seconds: float) -> None:
    record("begins", number)
    time.sleep(seconds)
    record("ends", number)
    if number == 0:
        raise ValueError(number)


@app.task
@limit("1 slot ttl 2s")
def killed(number: int, seconds: float) -> None:
    record("killed", number)
    time.sleep(seconds)


@app.task
@limit("2/minute", cost="units")
def costly(units: int) -> None:
    record("costly", units)


rate_limits(app, engine=os.environ.get("ENGINE", f"{BROKER}?deadline=10s"))
