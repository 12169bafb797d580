"""Our own limiters on a recorded timeline, on the server's clock."""

from headgate import Limit, Limiter
from tests.published_scripts.recorded_defects import DefectStep, RecordedDefect
from tests.servers import RedisServer
from tests.servers.raw_redis_client import Reply

KEY = "item:1"


def defect_answers(limit: Limit | str, entry: RecordedDefect, server: RedisServer) -> list[int]:
    """Returns the limit's answer at each step, 1 or 0; every call is on one key."""
    return replay_answers(limit, entry.steps, server)


def replay_answers(limit: Limit | str, steps: list[DefectStep], server: RedisServer) -> list[int]:
    with Limiter(limit, server.url) as limiter:
        answers = []
        for step in steps:
            server.clock.set_us(step.at_us)
            answers.append(int(limiter.take(KEY, step.cost).allowed))
        return answers


def key_ttls(server: RedisServer) -> dict[bytes, Reply]:
    """Every key of ours, and how many milliseconds it has to live."""
    keys = server.call("KEYS", "hg2:*")
    assert isinstance(keys, list)
    return {key: server.call("PTTL", key) for key in keys if isinstance(key, bytes)}
