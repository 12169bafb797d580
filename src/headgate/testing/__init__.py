"""For tests of programs that use headgate, and for whoever builds an engine.

A program under test takes a clock that moves only when told:

    clock = ManualClock()
    limiter = Limiter("10/s", clock=clock)

An engine of one's own is held to the port's promises by stories, each a function that raises AssertionError:

    @pytest.mark.parametrize("story", engine_stories, ids=lambda story: story.__name__)
    def test_my_engine(story):
        clock = ManualClock()
        story(MyEngine(clock), clock)

An engine that is awaited is told the same stories through `SyncAdapter`.
"""

from headgate.clock import ManualClock
from headgate.testing.engine_contract import Story, TurnedClock, engine_stories
from headgate.testing.sync_adapter import SyncAdapter

__all__ = ["SyncAdapter", "engine_stories", "ManualClock", "Story", "TurnedClock"]
