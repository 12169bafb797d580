"""Limits in code: what they take, and that a mistake is reported with its line."""

from collections.abc import Callable
from functools import partial

import pytest

from headgate import TokenBucket
from headgate.errors import InvalidRule
from headgate.integrations import aiohttp, fastapi, flask
from headgate.integrations.code_limit import CodeLimit


def test_a_limit_has_every_field_of_a_rule() -> None:
    limit = CodeLimit(
        "5/s; 1000/day", key=["user", "address/24"], missing="one", mode="shadow", refuse={"status": 503}, cost=2
    )
    assert limit.text == "5/s; 1000/day"
    assert limit.rule.refuse.status == 503
    assert limit.rule.mode.shadow == 10_000
    assert limit.uses == {"user", "address"}
    assert CodeLimit([TokenBucket(5, 1), "9/hour"]).text == "5/s; 9/hour"
    assert CodeLimit("1/s", when={"path": "/items/{sku}"}, key="sku").uses == {"path"}


def test_a_cost_up_to_the_burst_may_pass() -> None:
    assert CodeLimit("5/s burst 9", cost=9).text == "5/s burst 9"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CodeLimit("5/sec0nd"), 'limit: "5/sec0nd" is not a limit'),
        (lambda: CodeLimit("5/s", key="usr name"), '"usr name" is no attribute'),
        (lambda: CodeLimit("5/s", key="user"), "user can be missing, and the rule does not say what happens then"),
        (lambda: CodeLimit("5/s", key="adress", missing="one"), r"did you mean address"),
        (
            lambda: CodeLimit("5/s", key="adress"),
            r'no request has the attribute "adress": did you mean address\?$',
        ),
        (lambda: CodeLimit("5/s", key=5), "A key is the name of an attribute, .* not 5"),  # type: ignore[arg-type]
        (lambda: CodeLimit("5/s", exempt="/health"), "exempt is a function"),  # type: ignore[arg-type]
        (lambda: CodeLimit(len), r'write @limit\("5/s"\), with brackets'),  # type: ignore[arg-type]
        (lambda: CodeLimit("\uff15/s"), "\uff15 is not written in the digits 0 to 9"),
        (lambda: CodeLimit("5/s", cost=6), "cost 6 never passes 5/s, whose greatest cost is 5"),
        (lambda: CodeLimit("5/s; 3/hour", cost=4), "cost 4 never passes 3/hour"),
        (lambda: CodeLimit("5/s", refund="9xx"), 'refund: "9xx" is no status'),
        (lambda: CodeLimit("5/s", refund=[]), "refund: no status is given"),
        (lambda: CodeLimit("5/s", name="two words"), '"two words" cannot be the name of a rule'),
        (lambda: CodeLimit("5/s", mod="shadow"), r"mod= is not a setting .* Did you mean mode=\?"),  # type: ignore[call-arg]
        (lambda: CodeLimit("5/s", zone="x"), "Known: .*, cost_after, .*, exempt, .*, refund,"),  # type: ignore[call-arg]
        (lambda: CodeLimit("5/s", replaces="x"), "replaces= is not a setting of a limit in code"),  # type: ignore[call-arg]
        (lambda: CodeLimit("5/s", cost=0), "A cost of 0 charges nothing"),
        (
            lambda: CodeLimit("5/s", key=lambda: "ann"),  # type: ignore[arg-type, misc]
            r"key= receives the request, and cannot: its parameters are \(\)\. Write lambda request:",
        ),
        (
            lambda: CodeLimit("5/s", refund=lambda status, response: True),  # type: ignore[arg-type]
            r"refund= receives the response, and cannot: its parameters are \(status, response\)",
        ),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(make: Callable[[], CodeLimit], message: str) -> None:
    with pytest.raises(InvalidRule, match=message) as caught:
        make()
    assert str(caught.value).startswith(f"{__file__}:{make.__code__.co_firstlineno}: ")
    assert "rules[0]" not in str(caught.value)


def test_whatever_can_receive_a_request_is_a_function_of_it() -> None:
    def with_default(request: object, group: str = "all") -> str:
        return group

    for function in (with_default, lambda *args: "ann", str, repr, partial(with_default, group="x")):
        assert CodeLimit("5/s", key=function, exempt=function, cost_after=function).key_function is function


@pytest.mark.parametrize("make", [CodeLimit, flask.limit, fastapi.limit, aiohttp.limit])
def test_a_wrong_number_of_arguments_is_one_of_limit(make: Callable[..., CodeLimit]) -> None:
    with pytest.raises(TypeError, match=r"^limit\(\) missing 1 required positional argument: 'limit'"):
        make()
    with pytest.raises(TypeError, match=r"^limit\(\) takes from 2 to 3 positional arguments but 4 were given"):
        make("5/s", "address", 2)
