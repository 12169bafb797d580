"""The verdict that decides a call: Lua chooses as Python does, whatever was decided."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.algorithms.decision import Verdict, most_restrictive
from tests.http.test_headers import passed, refused
from tests.nginx.http.test_headers import verdict_fields, verdicts
from tests.nginx.pure_modules_process import start_twins
from tests.nginx.rules.luajit_process import LuajitProcess


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


@settings(max_examples=2000, deadline=None)
@given(st.lists(verdicts(), min_size=1, max_size=5), st.lists(st.booleans(), max_size=5))
@example([refused("10/s", 0, 3, 1, "x"), refused("10/minute", 10, None, 0, "y", cost=11)], [])
@example([passed("10/s", 5, 0.5, "a"), passed("100/s", 50, 0.5, "b"), passed("100/s", 49, 0.5, "c")], [])
@example(
    [passed("10/s", 0, 1, "a"), refused("10/s", 9, 0.1, 1, "b"), refused("10/s", 9, 0.1, 1, "c")], [True, True]
)
def test_lua_chooses_as_python_does(lua: LuajitProcess, drawn: list[Verdict], locked: list[bool]) -> None:
    encoded = [verdict_fields(verdict, at < len(locked) and locked[at]) for at, verdict in enumerate(drawn)]
    assert drawn[lua.call_driver("deciding", verdicts=encoded)] is most_restrictive(drawn)
