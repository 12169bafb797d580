"""A guard without a key is refused: when decorating, where that can be seen, else when the function is called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCharge, Limiter

LIMITER: Any = Limiter("1/hour")
AWAITED: Any = AsyncLimiter("1/hour")
SENTENCE = r'^A guard needs a key: write @limiter\.guard\("key"\), or @limiter\.guard\(lambda user: user\) '


async def coroutine() -> str:
    return ""


def generator() -> Iterator[str]:
    yield ""


async def async_generator() -> AsyncIterator[str]:
    yield ""


BARE = [coroutine, generator, async_generator]


@pytest.mark.parametrize("limiter", [LIMITER, AWAITED], ids=["sync", "async"])
@pytest.mark.parametrize("function", BARE, ids=lambda function: function.__name__)
def test_a_bare_guard_is_refused_when_decorating(limiter: Any, function: Any) -> None:
    with pytest.raises(InvalidCharge, match=SENTENCE):
        limiter.guard(function)


@pytest.mark.parametrize("limiter", [LIMITER, AWAITED], ids=["sync", "async"])
def test_a_function_that_might_form_a_key_is_refused_when_it_is_called(limiter: Any) -> None:
    @limiter.guard
    def greet(user="ann"):  # type: ignore[no-untyped-def]
        return f"Hello {user}"

    for args, more in (((), {}), (("ann",), {}), ((), {"user": "ann"}), (("ann", "bob"), {})):
        with pytest.raises(InvalidCharge, match=SENTENCE):
            greet(*args, **more)


@pytest.mark.parametrize("limiter", [LIMITER, AWAITED], ids=["sync", "async"])
@pytest.mark.parametrize("key", [None, 3, b"key"], ids=repr)
def test_invalid_keys_are_refused(limiter: Any, key: Any) -> None:
    with pytest.raises(InvalidCharge, match=r"^A key is a string, not "):
        limiter.guard(key)
    with pytest.raises(InvalidCharge, match=r"^A key must not be empty"):
        limiter.guard("")


def test_key_functions() -> None:
    class KeyCallable:
        def __call__(self, user: str) -> str:
            return user

        def of(self, user: str) -> str:
            return user

    def unannotated(user):  # type: ignore[no-untyped-def]
        return user

    def anything(user: str) -> Any:
        return user

    for key in (KeyCallable(), KeyCallable().of, unannotated, anything, str, lambda user: user):
        limiter = Limiter("1/hour")

        @limiter.guard(key)
        def greet(user: str) -> str:
            return f"Hello {user}"

        assert greet("ann") == "Hello ann"
