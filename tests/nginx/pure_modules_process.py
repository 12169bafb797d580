"""Runs the gateway's pure Lua twins (pure_modules_driver.lua) on limits in the form of the bundle."""

from pathlib import Path
from typing import Any

from headgate.algorithms.limit import Limit
from headgate.gateway.bundle import limit_entry
from tests.nginx.rules.luajit_process import LuajitProcess

DRIVER = Path(__file__).with_name("pure_modules_driver.lua")


def start_twins() -> LuajitProcess:
    return LuajitProcess(DRIVER)


def bundle_entry(limit: Limit) -> dict[str, Any]:
    """The limit as it stands in a bundle, with its text."""
    return {"text": limit.text, **dict(limit_entry(limit))}
