"""A shop's background tasks in Dramatiq, with limits that all workers keep together.

    pip install 'headgate[dramatiq,redis]'
    dramatiq examples.dramatiq_app
    python -c 'from examples import dramatiq_app; dramatiq_app.send_mails()'

Start several workers: two customers get three mails at once and then one every two seconds each, and all workers
together make one export at a time.
"""

import os
import sys
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from headgate.integrations.dramatiq import ActorLimits, TaskCall, limit

BROKER = os.environ.get("BROKER", "redis://localhost:6379/0")


def plan_of(call: TaskCall) -> dict[str, str]:
    """Returns what rules may ask about a call; a real application looks the user up."""
    return {"plan": "pro" if call.arguments.get("user_id") == 1 else "free"}


make_broker: Any = RedisBroker  # neither has types
make_results: Any = Results
results = RedisBackend(url=BROKER)
broker = make_broker(url=BROKER)
broker.add_middleware(make_results(backend=results))
broker.add_middleware(
    ActorLimits(
        engine=os.environ.get("ENGINE", BROKER),
        limits=["1000/minute"],  # all actors together
        attributes=plan_of,
    )
)
dramatiq.set_broker(broker)


@dramatiq.actor(limit=limit("30/minute burst 3", key="user_id"), store_results=True)
def send_mail(user_id: int, text: str) -> str:
    return f"to {user_id}: {text}"


@dramatiq.actor(limit=limit("10/s burst 1; 5000/day", name="partner"), max_retries=3)  # what the partner allows
def push_order(order: int) -> None: ...


@dramatiq.actor(limit="1 slot ttl 30s")
def export(seconds: float) -> None:
    time.sleep(seconds)


@dramatiq.actor(limit=limit({"by": "plan", "cases": {"pro": "100/hour"}, "otherwise": "2/hour"}, key="user_id"))
def report(user_id: int) -> None: ...


def send_mails() -> None:
    """Sends eight mails, and shows the workers' answers."""
    sent = [send_mail.send(user_id, f"mail {number}") for number in range(4) for user_id in (1, 2)]
    for message in sent:
        sys.stdout.write(f"{message.get_result(backend=results, block=True, timeout=60_000)}\n")
