"""The settings of the limits of an application's tasks, and their checks when they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from headgate.adaptive.window import check_number
from headgate.algorithms.limit import HORIZON_US, SECOND
from headgate.clock import Clock
from headgate.engines.url import parse_engine_url
from headgate.errors import InvalidRule, InvalidSetting
from headgate.integrations.application_settings import check_settings
from headgate.integrations.task_calls import TaskFunction, TaskLimit
from headgate.integrations.unknown_settings import reject_unknown
from headgate.limiter_flows import patience_us
from headgate.observer import Observer
from headgate.validation import check_engine


class TaskSettings(TypedDict, total=False):
    """The settings of an application's limits beside its rulebook and engine.

    limits      limits for all tasks of the application together: ["1000/minute"]
    attributes  a function of the TaskCall that returns other attributes: {"plan": "pro"}
    timeout     the seconds that a task waits for its place at most; if it would be longer, it fails (RateLimited)
    max_late    the seconds by which a task may miss its place and still begin; 10 unless given
    observers   receive every decision: [DecisionLog("decisions.jsonl")]
    clock, prefix   as of a limiter
    """

    limits: Sequence[TaskLimit | str]
    attributes: TaskFunction | None
    timeout: float | None
    max_late: float
    observers: Sequence[Observer]
    clock: Clock | None
    prefix: str


def check_task_settings(engine: object, settings: Mapping[str, Any]) -> None:
    """Raises InvalidSetting, InvalidRule or InvalidCharge for settings that only a task would find to be wrong."""
    reject_unknown(settings, ("rules", "engine", *TaskSettings.__optional_keys__))
    if engine is None:
        raise InvalidSetting(
            "engine= is missing: tasks run in many processes, and a server counts for all of them. Write "
            'engine="redis://localhost:6379/0", or "memory://" where one process runs all tasks.'
        )
    if isinstance(engine, str):
        parse_engine_url(engine, ruled=True)
    else:
        check_engine(engine, awaited=False)
    check_settings(settings)
    patience_us(settings.get("timeout"))
    check_number("max_late", settings.get("max_late", 0), 0, HORIZON_US / SECOND)


def read_limits(name: str, limits: Any) -> tuple[TaskLimit, ...]:
    """Returns the limits of a setting, one or a list, which may be written as texts such as "1000/minute"."""
    listed: Iterable[Any] = [limits] if isinstance(limits, str | TaskLimit) else limits
    if not isinstance(listed, list | tuple):
        raise InvalidSetting(f'{name}= is a list of limits, such as ["1000/minute"], not {limits!r}.')
    made = tuple(TaskLimit(each) if isinstance(each, str) else each for each in listed)
    for each in made:
        if not isinstance(each, TaskLimit):
            raise InvalidSetting(f'{name}= has limits such as "1000/minute", not {each!r}.')
    return made


def read_app_limits(settings: TaskSettings) -> tuple[TaskLimit, ...]:
    """Returns the limits of all tasks together. They name no argument, because some tasks do not have it."""
    limits = read_limits("limits", settings.get("limits", ()))
    for limit in limits:
        if limit.named_arguments:
            raise InvalidRule(
                f'{limit.location}: A limit of all tasks has no argument "{limit.named_arguments[0]}" to be '
                'limited by: write key="task", key="queue", or a function of the call.'
            )
    return limits
