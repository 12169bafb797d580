"""Conditions: values that hold or not, that capture, and that read as a sentence."""

import pickle

import pytest
from hypothesis import given

from headgate.errors import InvalidRule
from headgate.rules.condition import All, AnyOf, Condition, Not, Test
from headgate.rules.matching.compile_condition import compile_condition
from tests.rules.random_rulebooks import CALLS, CONDITIONS

GET = Test("method", ("GET",))
ITEM = Test("path", ("/items/{sku}", "/{shop}/items/{sku}"))


@given(CONDITIONS, CALLS)
def test_bound_is_none_exactly_where_it_does_not_hold(condition: Condition, call: dict[str, str]) -> None:
    bound = condition.bind(call)
    assert (bound is not None) is condition.holds(call)
    assert compile_condition(condition)(call) is condition.holds(call)
    if bound is not None:
        assert {name for name in bound if bound[name] != call.get(name)} <= condition.captures


@given(CONDITIONS, CALLS)
def test_de_morgan(condition: Condition, call: dict[str, str]) -> None:
    held = condition.holds(call)
    assert Not(condition).holds(call) is not held
    assert Not(Not(condition)).holds(call) is held
    assert All((condition, All(()))).holds(call) is held
    assert AnyOf((AnyOf(()), condition)).holds(call) is held


@given(CONDITIONS)
def test_conditions_are_values(condition: Condition) -> None:
    again = pickle.loads(pickle.dumps(condition))
    assert again == condition
    assert hash(again) == hash(condition)
    assert str(again) == str(condition) != ""


def test_no_conditions_at_all() -> None:
    assert All(()).holds({})
    assert not AnyOf(()).holds({})


def test_the_first_pattern_that_fits_captures() -> None:
    assert ITEM.bind({"path": "/items/7"}) == {"path": "/items/7", "sku": "7"}
    assert ITEM.bind({"path": "/a/items/7"}) == {"path": "/a/items/7", "sku": "7", "shop": "a"}
    assert ITEM.bind({"path": "/a"}) is None
    assert ITEM.bind({}) is None
    assert ITEM.captures == {"sku", "shop"}


def test_the_first_part_that_holds_captures() -> None:
    either = AnyOf((All((GET, ITEM)), Test("path", ("/{kind}/7",))))
    assert either.bind({"path": "/items/7", "method": "GET"}) == {"path": "/items/7", "method": "GET", "sku": "7"}
    assert either.bind({"path": "/items/7"}) == {"path": "/items/7", "kind": "items"}


def test_captured_segments_are_visible_to_sibling_conditions() -> None:
    nested = All((All((Test("sku", ("7",)),)), All((ITEM,))))
    assert nested.holds({"path": "/items/7", "sku": "8"})
    assert not nested.holds({"path": "/items/8", "sku": "7"})
    assert nested.holds({"path": "/items/7"}) is (nested.bind({"path": "/items/7"}) is not None)


def test_conditions_within_conditions_that_must_all_hold_are_one() -> None:
    first = All((Test("path", ("/{one}/*",)), Test("two", ("b",))))
    second = All((Test("path", ("/*/{two}",)), Test("one", ("a",))))
    assert All((first, second)).holds({"path": "/a/b"})
    assert not All((first, second)).holds({"path": "/a/c"})


def test_not_captures_nothing() -> None:
    assert Not(ITEM).captures == frozenset()
    assert Not(ITEM).bind({"path": "/x"}) == {"path": "/x"}


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (ITEM, "path is /items/{sku} or /{shop}/items/{sku}"),
        (Test("method", ("GET", "HEAD")), "method is GET or HEAD"),
        (Test("header.x-plan", True), "header.x-plan is present"),
        (Test("header.x-plan", False), "header.x-plan is absent"),
        (Not(Test("header.x-plan", True)), "header.x-plan is absent"),
        (Not(Test("header.x-plan", False)), "header.x-plan is present"),
        (Not(GET), "method is not GET"),
        (Not(All((GET, Test("user", True)))), "not (method is GET and user is present)"),
        (All((GET, AnyOf((GET, Test("plan", True))))), "method is GET and (method is GET or plan is present)"),
        (AnyOf((GET, All((GET, GET)))), "method is GET or (method is GET and method is GET)"),
        (All(()), "always"),
        (AnyOf(()), "never"),
    ],
)  # fmt: skip
def test_a_condition_reads_well(condition: Condition, text: str) -> None:
    assert str(condition) == text


@pytest.mark.parametrize(
    ("attribute", "wanted", "sentence"),
    [
        ("path", "items", "a path begins with a slash"),
        ("address", "10.0.0.1/8", "write 10.0.0.0/8 for the network"),
        ("user", "", "write false"),
    ],
)
def test_an_impossible_condition_is_refused(attribute: str, wanted: str, sentence: str) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        Test(attribute, (wanted,))


def test_an_empty_list_is_a_mistake() -> None:
    with pytest.raises(InvalidRule, match="user is compared with an empty list"):
        Test("user", ())


def test_methods_and_hosts_have_no_case() -> None:
    assert Test("method", ("get",)).holds({"method": "GET"})
    assert Test("host", ("*.Example.COM",)).holds({"host": "a.example.com"})
    assert Test("method", ("get", "GET")).exact == frozenset({"GET"})
    assert Test("user", ("a*", "b")).exact is None
