"""For each recorded defect, a function of its name that shows that ours does not have it."""

from collections.abc import Callable
from types import ModuleType

from tests.published_scripts.article_scripts import (
    fixed_window,
    hash_bucket,
    interval_bucket,
    rate_limiter,
    spring_gateway,
    zset_window,
)
from tests.published_scripts.recorded_defects import RecordedDefect
from tests.servers import RedisServer

Show = Callable[[RecordedDefect, RedisServer], None]


def _shown_in(module: ModuleType) -> dict[str, Show]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


SHOWN: dict[str, Show] = {
    **_shown_in(rate_limiter),
    **_shown_in(hash_bucket),
    **_shown_in(fixed_window),
    **_shown_in(interval_bucket),
    **_shown_in(zset_window),
    **_shown_in(spring_gateway),
}
