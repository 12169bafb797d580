"""Protocols of several steps, spelled once.

A flow is a generator that yields steps: things to call. A sync driver calls each and sends back what it
returned; an async driver awaits it; a test may answer by itself. What a step raises is raised inside the flow,
at the yield, so a flow can clean up with an ordinary try.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Step = Callable[[], Any]
Flow = Generator[Step, Any, T]


def run(flow: Flow[T]) -> T:
    """Drive a flow whose steps answer at once."""
    try:
        step = next(flow)
        while True:
            try:
                answer = step()
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(flow: Flow[T]) -> T:
    """Drive a flow whose steps are awaited."""
    try:
        step = next(flow)
        while True:
            try:
                answer = await step()
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
