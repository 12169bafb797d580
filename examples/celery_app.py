"""A shop's background tasks in Celery, with limits that all workers keep together.

    pip install 'headgate[celery,redis]' 'celery[redis]'
    celery -A examples.celery_app worker
    python -c 'from examples import celery_app; celery_app.send_mails()'

Start several workers: two customers get three mails at once and then one every two seconds each, and all workers
together make one export at a time.
"""

import os
import sys
import time

from celery import Celery

from headgate.integrations.celery import TaskCall, limit, rate_limits

BROKER = os.environ.get("BROKER", "redis://localhost:6379/0")

app = Celery("shop", broker=BROKER, backend=BROKER)


def plan_of(call: TaskCall) -> dict[str, str]:
    """Returns what rules may ask about a call; a real application looks the user up."""
    return {"plan": "pro" if call.arguments.get("user_id") == 1 else "free"}


rate_limits(
    app,
    engine=os.environ.get("ENGINE", BROKER),
    limits=["1000/minute"],  # all tasks together
    attributes=plan_of,
)


@app.task
@limit("30/minute burst 3", key="user_id")
def send_mail(user_id: int, text: str) -> str:
    return f"to {user_id}: {text}"


@app.task(autoretry_for=(OSError,), max_retries=3)
@limit("10/s burst 1; 5000/day", name="partner")  # what the partner allows
def push_order(order: int) -> int:
    return order


@app.task(acks_late=True)
@limit("1 slot ttl 30s")
def export(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.task
@limit({"by": "plan", "cases": {"pro": "100/hour"}, "otherwise": "2/hour"}, key="user_id")
def report(user_id: int) -> int:
    return user_id


def send_mails() -> None:
    """Sends eight mails, and shows the workers' answers."""
    sent = [send_mail.delay(user_id, f"mail {number}") for number in range(4) for user_id in (1, 2)]
    for result in sent:
        sys.stdout.write(f"{result.get(timeout=60)}\n")
