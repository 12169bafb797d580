"""Removes an argument that a framework passes to a function which does not take it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import aclosing
from functools import wraps
from typing import Any


def without_argument(endpoint: Callable[..., Any], name: str) -> Any:
    """Returns the function without one argument: a coroutine stays one, and so do generators."""
    if inspect.iscoroutinefunction(endpoint):

        @wraps(endpoint)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop(name, None)
            return await endpoint(*args, **kwargs)

        return call_async
    if inspect.isasyncgenfunction(endpoint):

        @wraps(endpoint)
        async def iterate_async(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop(name, None)
            async with aclosing(endpoint(*args, **kwargs)) as items:
                async for item in items:
                    yield item

        return iterate_async
    if inspect.isgeneratorfunction(endpoint):

        @wraps(endpoint)
        def iterate(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop(name, None)
            return (yield from endpoint(*args, **kwargs))

        return iterate

    @wraps(endpoint)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop(name, None)
        return endpoint(*args, **kwargs)

    return call
