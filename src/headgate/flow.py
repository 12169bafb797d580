"""Flows: operations of several steps, written once for sync and async callers.

A flow is a generator that yields steps: functions to call. The sync driver calls each and sends back its result;
the async driver awaits it; a test may send results by itself. An exception of a step is raised inside the flow,
at the yield, so a flow can clean up with an ordinary try.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Step = Callable[[], Any]
Flow = Generator[Step, Any, T]


def run(flow: Flow[T]) -> T:
    """Runs a flow whose steps return at once."""
    try:
        step = next(flow)
        while True:
            try:
                result = step()
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(flow: Flow[T]) -> T:
    """Runs a flow whose steps are awaited."""
    try:
        step = next(flow)
        while True:
            try:
                result = await step()
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
