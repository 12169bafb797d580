"""headgate limit --engine: what a fallback does, with the numbers that processes really go by."""

import threading

import pytest

from headgate import Limiter
from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.layers.fallback.membership import Membership
from headgate.engines.memory.engine import MemoryEngine
from tests.cli.conftest import Prompt

COUNTED = "redis://127.0.0.1:1/0?fallback=local"
STATED = f"{COUNTED}&nodes=3"
TWICE = "at most twice the limit in the window in which an outage begins or is partial"


def law(prompt: Prompt, *words: str) -> str:
    words_: str = prompt.json("limit", *words)["limits"][0]["explained"]["fallback"]
    return words_


@pytest.mark.parametrize("more", [(), ("--nodes", "3")])
def test_a_stated_number_of_processes_gives_equal_shares(prompt: Prompt, more: tuple[str, ...]) -> None:
    few = law(prompt, "5/s burst 2", "--engine", STATED, *more)
    assert "each of 3 processes goes on with 1/600ms: " in few
    assert "all together at most at the limit's rate, and up to 3 at once instead of 2" in few
    assert "the others" not in few
    many = law(prompt, "100/s burst 10", "--engine", STATED, *more)
    assert "each of 3 processes goes on with 1/30ms burst 3: " in many
    assert TWICE in many
    calendar = law(prompt, "2/month fixed in Asia/Tokyo", "--engine", STATED, *more)
    assert (
        "each of 3 processes goes on with 1/month fixed in Asia/Tokyo: all together up to 3 in a month" in calendar
    )
    slots = law(prompt, "2 slots", "--engine", STATED, *more)
    assert "each of 3 processes goes on with 1 slots: all together up to 3 at a time instead of 2" in slots


def test_processes_that_are_counted_have_shares_by_rank(prompt: Prompt) -> None:
    three = ("--engine", COUNTED, "--nodes", "3")
    few = law(prompt, "5/s burst 2", *three)
    assert "the first 2 of 3 processes go on with 1/400ms, and the others refuse every call: " in few
    assert TWICE in few
    assert "the first of 3 processes goes on with 1/200ms, and the others refuse every call: " in law(
        prompt, "5/s burst 1", *three
    )
    assert "1 of 3 processes goes on with 1/30ms burst 4, and the others with 1/30ms burst 3: " in law(
        prompt, "100/s burst 10", *three
    )
    assert "each of 3 processes goes on with 1/30ms burst 3: " in law(prompt, "100/s burst 9", *three)
    assert "each of 3 processes goes on with 1000000/50000m smooth: " in law(prompt, "1/s smooth", *three)


def test_a_number_that_is_too_small_is_no_secret(prompt: Prompt) -> None:
    output = law(prompt, "100/s burst 9", "--engine", STATED, "--nodes", "6")
    assert "each of 6 processes goes on with 1/30ms burst 3: " in output
    assert "the engine was given nodes=3, so 6 processes together admit up to 2 times the limit" in output
    alone = Limiter("100/s", FallbackEngine(MemoryEngine(), members=Membership()))
    words = " ".join(alone.explain(nodes=4).split())
    assert "each of 4 processes goes on with 100/s: " in words
    assert "engine this process alone" in words


@pytest.mark.parametrize("engine", [STATED, COUNTED])
def test_a_limit_too_slow_to_divide_is_reported(prompt: Prompt, engine: str) -> None:
    output = law(prompt, "1/900s queue 50", "--engine", engine, "--nodes", "3")
    assert "each of 3 processes refuses every call: 1/15m queue 50 is too slow to be divided" in output


def test_one_process_has_the_limit_as_it_is_and_nothing_is_opened(prompt: Prompt) -> None:
    before = threading.active_count()
    assert "the one process goes on with 100/s: " in law(prompt, "100/s", "--engine", COUNTED)
    assert threading.active_count() == before
