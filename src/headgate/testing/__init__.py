"""Tools for tests of programs that use headgate, and for developers of engines.

A program under test gets a clock that moves only when it is set:

    clock = ManualClock()
    limiter = Limiter("10/s", clock=clock)

Or its limits are switched off, in the whole process or for one application:

    with limits_off():
        client.post("/login")

The pytest plugin (pytest_headgate.py, installed with headgate) has both as fixtures.

Stories check whether an engine keeps the promises of the port; each is a function that raises AssertionError:

    @pytest.mark.parametrize("story", engine_stories, ids=lambda story: story.__name__)
    def test_my_engine(story):
        clock = ManualClock()
        story(MyEngine(clock), clock)

`SyncAdapter` runs the same stories on an async engine.

Modules:
    engine_contract    the stories that every engine must pass
    limits_off         lets every call pass
    sync_adapter       wraps an async engine for blocking calls
"""

from headgate.clock import ManualClock
from headgate.testing.engine_contract import Story, TurnedClock, engine_stories
from headgate.testing.limits_off import limits_off
from headgate.testing.sync_adapter import SyncAdapter

__all__ = ["limits_off", "ManualClock", "Story", "SyncAdapter", "TurnedClock", "engine_stories"]
