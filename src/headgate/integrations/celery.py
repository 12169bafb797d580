"""Limits the tasks of a Celery application: by task, by argument, and of all workers together.

    app = Celery("shop", broker="redis://localhost:6379/0")
    rate_limits(app, engine="redis://localhost:6379/1")

    @app.task
    @limit("100/minute burst 10", key="user_id")           # below @app.task
    def send(user_id: int) -> None: ...

A worker decides when it is about to begin the task. If the task must wait, it reserves its place and publishes the
message again, with that instant as its eta and the same id; the worker goes on with other tasks. At its place the
task begins without being charged again. Retries, expiry, time limits, chains, groups and chords stay as they were.

A message that waits in a worker is not acknowledged, and brokers deliver such messages again after a while (Redis
and SQS after the visibility timeout, RabbitMQ after 30 minutes). So no message waits for longer than half of that:
a longer delay is made in several hops, on one reservation.

Tasks that are called as functions, and those of task_always_eager and apply(), are not limited. task_limits.py
says what becomes of tasks that miss their place, find no slot, expire, or never pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack
from weakref import WeakKeyDictionary

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import Engine
from headgate.errors import EngineUnavailable, HeadgateError, InvalidRule, InvalidSetting
from headgate.extras import require
from headgate.integrations.task_calls import TaskCall, TaskLimit, limits_of, read_arguments
from headgate.integrations.task_limits import MAX_HOP_S, PutBack, TaskLimits, WaitingTask
from headgate.integrations.task_settings import TaskSettings
from headgate.validation import describe

require("headgate.integrations.celery", "celery", "celery")

from celery import Celery, Task, current_task, signals  # noqa: E402
from celery.exceptions import Ignore  # noqa: E402
from celery.local import Proxy  # noqa: E402
from celery.utils.time import maybe_iso8601, maybe_make_aware  # noqa: E402

__all__ = ["limit", "rate_limits", "TaskCall", "TaskLimits"]

P = ParamSpec("P")
R = TypeVar("R")

HEADER = "headgate"  # of a message that was put back
_DECIDED = "headgate_decided"
_HOOKED = "__headgate_hooked__"

_limits: WeakKeyDictionary[Any, TaskLimits] = WeakKeyDictionary()


class CeleryLimit(TaskLimit):
    """A limit of a task, as a decorator below @app.task.

    limit    "100/minute burst 10", several ("10/s; 1000/day"), or slots ("5 slots")
    key      the name of an argument, several of them, or a function of the TaskCall; without one, all calls of the
             task share one counter
    cost     a number, the name of an argument, or a function of the TaskCall
    name     limits of one name share their counters; without one each task counts by itself
    exempt   a function of the TaskCall, or a condition: calls for which it holds are not limited

    Other keywords are the fields of a rule, such as lockout or mode="shadow".
    """

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if isinstance(function, Proxy | Task):
            raise InvalidRule(f"{self.location}: This limits a task, not its function: write it below @app.task.")
        has_limits = bool(limits_of(function))
        super().__call__(function)
        return function if has_limits else _limited(function)


limit = CeleryLimit


def rate_limits(
    app: Celery, rules: Rules | None = None, engine: str | Engine | None = None, **settings: Unpack[TaskSettings]
) -> TaskLimits:
    """Limits the tasks of an application, by a rulebook, by limits in code, or both. TaskSettings lists the
    settings. Rules see the attributes task, queue and argument.NAME."""
    if not isinstance(app, Celery):
        raise InvalidSetting(f"rate_limits limits the tasks of a Celery application, not {describe(app)}.")
    if app in _limits:
        raise InvalidSetting(f"{app!r} has limits already: call rate_limits once for each application.")
    limits = _limits[app] = TaskLimits(rules, engine, **settings)

    def limit_tasks(sender: Any = None, **_: object) -> None:
        for task in list(app.tasks.values()):
            if limits.app_limits or rules is not None or limits_of(task.run):
                _hook(task)

    def check(sender: Any = None, **_: object) -> None:
        if getattr(sender, "app", None) is app:
            limit_tasks()
            try:
                for task in app.tasks.values():
                    limits.bind(task.name, limits_of(task.run))
            except HeadgateError as error:  # a signal only logs exceptions
                raise SystemExit(f"headgate: {error}") from error

    def open_limiter(sender: Any = None, **_: object) -> None:
        with suppress(EngineUnavailable):  # the first call tries again
            limits.open()

    def close(sender: Any = None, **_: object) -> None:
        limits.close()

    native: Any = app
    if native.finalized:
        limit_tasks()
    else:
        native.on_after_finalize.connect(limit_tasks, weak=False)
    signals.worker_init.connect(check, weak=False)
    signals.worker_process_init.connect(open_limiter, weak=False)
    signals.worker_process_shutdown.connect(close, weak=False)
    signals.worker_shutdown.connect(close, weak=False)
    return limits


def _hook(task: Any) -> None:
    """Makes a task decide before it runs. Celery wraps `run` in the same way for autoretry_for."""
    if getattr(task.run, _HOOKED, False) or task.name.startswith("celery."):
        return
    run, signature = task.run, inspect.signature(task.run)

    @wraps(run)
    def decide_and_run(*args: Any, **kwargs: Any) -> Any:
        return _run(task, run, signature, args, kwargs)

    setattr(decide_and_run, _HOOKED, True)
    task.run = decide_and_run


def _limited(function: Callable[P, R]) -> Callable[P, R]:
    """Decides calls of tasks that were registered after the worker had started, or whose application has no
    limits."""
    signature = inspect.signature(function)

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        task: Any = current_task
        if task and limits_of(function)[-1:] == limits_of(task.run)[-1:]:
            result: R = _run(task, function, signature, args, kwargs)
            return result
        return function(*args, **kwargs)

    limited.__signature__ = signature  # type: ignore[attr-defined]  # Celery reads the arguments of a task by it
    return limited


def _run(
    task: Any, run: Callable[..., Any], signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Runs a task now, or puts it back."""
    request = task.request
    if request.called_directly or request.is_eager or getattr(request, _DECIDED, False):
        return run(*args, **kwargs)
    setattr(request, _DECIDED, True)
    limits = _limits.get(task.app)
    if limits is None:
        raise InvalidSetting(
            f'The task "{task.name}" has limits, and its application has no engine to count them: call '
            "rate_limits(app, engine=...) where the application is made."
        )
    waiting = _read_waiting(request)
    # A retry of this task is another call, and is charged.
    (request.headers or {}).pop(HEADER, None)
    arguments = read_arguments(signature, args, kwargs)
    if arguments is None:
        return run(*args, **kwargs)  # which raises TypeError
    queue = (request.delivery_info or {}).get("routing_key")
    call = TaskCall(task.name, arguments, queue, request)
    bound = limits.bind(task.name, limits_of(task.run))
    answer = limits.decide(call, bound, waiting, _expires_at(task.app, request))
    if isinstance(answer, PutBack):
        _put_back(task, request, limits, answer.waiting)
        raise Ignore("headgate: the task waits for its turn")
    error: BaseException | None = None
    try:
        return run(*args, **kwargs)
    except BaseException as raised:
        error = raised
        raise
    finally:
        limits.finish(answer, error)
        del error  # it refers to this frame


def _put_back(task: Any, request: Any, limits: TaskLimits, waiting: WaitingTask) -> None:
    """Publishes the message of a task again, with the same id, to arrive when its time has come."""
    arrives_at = min(waiting.at, limits.now() + max_hop(task.app))
    headers = {**(request.headers or {}), HEADER: waiting.to_json()}
    try:
        eta = datetime.fromtimestamp(arrives_at, UTC)
        task.signature_from_request(request, headers=headers, eta=eta).apply_async()
    except BaseException:
        limits.give_back_quietly(waiting)
        raise


def max_hop(app: Celery) -> float:
    """Returns for how many seconds a message may wait in a worker: half of what the broker allows."""
    options = app.conf.broker_transport_options or {}
    visibility_timeout = options.get("visibility_timeout")
    return MAX_HOP_S if visibility_timeout is None else min(MAX_HOP_S, float(visibility_timeout) / 2)


def _read_waiting(request: Any) -> WaitingTask | None:
    carried = (request.headers or {}).get(HEADER)
    return None if carried is None else WaitingTask.from_json(carried)


def _expires_at(app: Any, request: Any) -> float | None:
    """Returns when a message expires, in seconds since 1970; None if it does not."""
    expires = maybe_iso8601(request.expires)
    return None if expires is None else float(maybe_make_aware(expires, app.timezone).timestamp())


def _give_back_place(sender: Any = None, request: Any = None, terminated: bool = False, **_: object) -> None:
    """Gives back the place of a task that was revoked, or that expired, before it started."""
    limits = _limits.get(sender.app)
    waiting = _read_waiting(request)
    if limits is not None and waiting is not None and not terminated:
        limits.give_back_quietly(waiting)


signals.task_revoked.connect(_give_back_place, weak=False)
