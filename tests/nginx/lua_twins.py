"""The gateway's pure twins in Lua (twins.lua), and a limit as a bundle tells of it."""

from pathlib import Path
from typing import Any

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import Limit
from headgate.algorithms.smooth import Smooth
from headgate.engines.layers.fallback.limit_share import full_capacity
from headgate.engines.redis.protocol import limit_args
from headgate.http.headers import per_second, quota, window_seconds
from tests.nginx.rules.luajit_process import Lua

DRIVER = Path(__file__).with_name("twins.lua")


def twins() -> Lua:
    return Lua(DRIVER)


def entry(limit: Limit) -> dict[str, Any]:
    """The limit as it stands in a bundle, with its text; without what is None."""
    told: dict[str, Any] = {
        "text": limit.text,
        "algorithm": limit.algorithm,
        "numbers": [str(number) for number in limit_args(limit, "a rule")],
        "quota": quota(limit),
        "window": window_seconds(limit),
        "per_second": per_second(limit),
        "fresh": full_capacity(limit),
    }
    if isinstance(limit, Smooth):
        told["interval_us"] = limit.interval_us
    if isinstance(limit, FixedWindow) and limit.unit is not None:
        told["calendar"] = {"unit": limit.unit, "zone": limit.zone}
    return {name: value for name, value in told.items() if value is not None}
