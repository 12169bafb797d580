"""Finds the Lua library for nginx, and copies it for images and machines without Python.

In an installed package it is headgate/nginx/lib, in a source tree nginx/lib beside src. There the folder of
algorithms is a link to src/headgate/lua/algorithms, from which Redis scripts are assembled; elsewhere all are
files.
"""

from __future__ import annotations

from pathlib import Path

from headgate.errors import InvalidRule
from headgate.gateway.atomic_file import write

_HERE = Path(__file__).resolve()
_CANDIDATES = (_HERE.parents[1] / "nginx" / "lib", _HERE.parents[3] / "nginx" / "lib")


def folder() -> Path:
    """Returns the folder below which nginx finds resty/headgate."""
    for path in _CANDIDATES:
        if (path / "resty" / "headgate").is_dir():
            return path
    raise InvalidRule(
        f"This headgate came without its Lua for nginx: there is no {_CANDIDATES[0]}. Install it again."
    )


def package_path(directory: Path) -> str:
    """Returns the lua_package_path entry for the library in that folder."""
    path = str(directory / "?.lua")
    if any(char in str(directory) for char in ';?"\\$\n'):
        raise InvalidRule(
            f"nginx cannot find Lua in {directory}: its name holds a character with a meaning in "
            "lua_package_path. "
            "Copy the Lua elsewhere: headgate lua copy DIR."
        )
    return path


def copy(target: Path) -> list[Path]:
    """Copies every Lua file below the target; returns their relative paths. Other files there are not touched."""
    source = folder()
    names = sorted(_lua_files(source))
    for name in names:
        destination = target / name
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRule(f"{destination.parent} cannot be made: {error.strerror or error}.") from error
        write(destination, (source / name).read_bytes())
    return names


def _lua_files(source: Path, subfolder: Path = Path()) -> list[Path]:
    """Lists Lua files, also in folders that are links: Path.rglob does not follow them in every Python."""
    files: list[Path] = []
    for path in (source / subfolder).iterdir():
        if path.is_dir():
            files += _lua_files(source, subfolder / path.name)
        elif path.suffix == ".lua":
            files.append(subfolder / path.name)
    return files
