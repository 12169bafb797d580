"""The gateway's pure twins in Lua (twins.lua), and a limit as a bundle tells of it."""

from pathlib import Path
from typing import Any

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import Limit
from headgate.algorithms.smooth import Smooth
from headgate.engines.redis.protocol import limit_args
from headgate.http.headers import per_second, quota
from tests.nginx.rules.luajit_process import LuajitProcess

DRIVER = Path(__file__).with_name("twins.lua")


def start_twins() -> LuajitProcess:
    return LuajitProcess(DRIVER)


def bundle_entry(limit: Limit) -> dict[str, Any]:
    """The limit as it stands in a bundle, with its text; without what is None."""
    told: dict[str, Any] = {
        "text": limit.text,
        "algorithm": limit.algorithm,
        "numbers": [str(number) for number in limit_args(limit, "a rule")],
        "quota": quota(limit),
        "window": limit.window_seconds,
        "per_second": per_second(limit),
        "fresh": limit.units_at_once,
    }
    if isinstance(limit, Smooth):
        told["interval_us"] = limit.interval_us
    if isinstance(limit, FixedWindow) and limit.unit is not None:
        told["calendar"] = {"unit": limit.unit, "zone": limit.zone}
    return {name: value for name, value in told.items() if value is not None}
