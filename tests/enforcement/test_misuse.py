"""Wrong arguments in place of a BatchedCall, a receipt or a Rulebook are refused with a sentence that says what is
expected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCharge, InvalidRule, Limiter
from headgate.enforcement.check_together import BatchedCall
from headgate.enforcement.stored_decision import ChargeReceipt
from headgate.limit_syntax import parse

BOOK = {"rules": [{"name": "all", "limit": "3/minute"}]}
both = pytest.mark.parametrize("make", [Limiter.from_rules, AsyncLimiter.from_rules], ids=["sync", "async"])


def call(verb: Callable[..., Any], *args: Any) -> Any:
    """Calls a verb of either limiter."""

    async def awaited() -> Any:
        result = verb(*args)
        return await result if isawaitable(result) else result

    return asyncio.run(awaited())


@both
@pytest.mark.parametrize("given", [{"path": "/"}, "x", None, 3, ({"path": "/"},)], ids=repr)
def test_invalid_calls_are_refused(make: Callable[..., Any], given: Any) -> None:
    limiter = make(BOOK)
    example = r'BatchedCall\(\{"user": "ann"\}, cost=2\) of headgate\.enforcement\.check_together'
    sentence = f"^A call is a BatchedCall, such as {example}; not "
    with pytest.raises(InvalidCharge, match=sentence):
        call(limiter.check_together, [BatchedCall({}), given])
    with pytest.raises(InvalidCharge, match=sentence):
        call(limiter.give_back, given, 1)
    assert call(limiter.peek, {}).remaining == 3


@both
def test_asks_are_a_list(make: Callable[..., Any]) -> None:
    limiter = make(BOOK)
    for given in (BatchedCall({"user": "ann"}), {"path": "/"}, "x", None, 3):
        with pytest.raises(
            InvalidCharge, match=r"^Calls are a list of BatchedCalls, such as \[BatchedCall\(.*\)\]; not "
        ):
            call(limiter.check_together, given)
    assert [bool(each) for each in call(limiter.check_together, (BatchedCall({}), BatchedCall({})))] == [
        True,
        True,
    ]


@both
@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": "3/minute"},
        {"limit": 7},
        {"name": 3},
        {"key": 3},
    ],
    ids=repr,
)
def test_a_batched_call_with_a_wrong_limit_is_refused(make: Callable[..., Any], wrong: dict[str, Any]) -> None:
    limiter = make(BOOK)
    batched_call = BatchedCall({}, **{"limit": parse("3/minute"), "name": "own", "key": "ann", **wrong})
    for verb, args in ((limiter.check_together, ([batched_call],)), (limiter.give_back, (batched_call, 1))):
        with pytest.raises(InvalidCharge, match=r"^(A BatchedCall's (limit|name) is|A key is a string)"):
            call(verb, *args)


@both
@pytest.mark.parametrize("given", ["x", [1], [None], None, 3, {"rule": "all"}, [("all", None)]], ids=repr)
def test_invalid_receipts_are_refused(make: Callable[..., Any], given: Any) -> None:
    sentence = r"^Receipts are a list, as receipts\(decision\) returns it; not "
    with pytest.raises(InvalidCharge, match=sentence):
        make(BOOK).restore_decision(given)


@both
def test_one_receipt_is_put_into_a_list(make: Callable[..., Any]) -> None:
    limiter = make(BOOK)
    receipts = limiter.receipts(call(limiter.check, {}))
    assert isinstance(receipts[0], ChargeReceipt)
    with pytest.raises(InvalidCharge, match=r"^Receipts are a list"):
        limiter.restore_decision(receipts[0])
    call(limiter.refund, limiter.restore_decision(tuple(receipts)))
    assert call(limiter.peek, {}).remaining == 3


@both
@pytest.mark.parametrize("given", ["x", "rules.yaml", None, 3, BOOK], ids=type)
def test_invalid_rulebooks_are_refused(make: Callable[..., Any], given: Any) -> None:
    limiter = make(BOOK)
    book = limiter.rulebook
    with pytest.raises(InvalidRule, match=r"^A Rulebook is expected, as headgate\.rules\.load.* not "):
        limiter.replace(given)
    assert limiter.rulebook is book
