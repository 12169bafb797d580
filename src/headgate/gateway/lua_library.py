"""Where the Lua for nginx lies, and a copy of it for those who have no Python: images, other machines.

In an installed package it is headgate/nginx/lib, in a source tree nginx/lib beside src. There the folder of models
is a link to src/headgate/lua/algorithms, from which Redis scripts are assembled; elsewhere all are files.
"""

from __future__ import annotations

from pathlib import Path

from headgate.errors import InvalidRule
from headgate.gateway.atomic_file import write

_HERE = Path(__file__).resolve()
_PLACES = (_HERE.parents[1] / "nginx" / "lib", _HERE.parents[3] / "nginx" / "lib")


def folder() -> Path:
    """The folder below which nginx finds resty/headgate."""
    for place in _PLACES:
        if (place / "resty" / "headgate").is_dir():
            return place
    raise InvalidRule(f"This headgate came without its Lua for nginx: there is no {_PLACES[0]}. Install it again.")


def package_path(place: Path) -> str:
    """What lua_package_path needs to find it there."""
    path = str(place / "?.lua")
    if any(letter in str(place) for letter in ';?"\\$\n'):
        raise InvalidRule(
            f"nginx cannot be told of {place}: its name holds a character that means something in a Lua path. "
            "Copy the Lua elsewhere: headgate lua copy DIR."
        )
    return path


def copy(target: Path) -> list[Path]:
    """Copy every Lua file to the target, below resty; the files, by their names there. Others are left alone."""
    source = folder()
    found = sorted(_files(source))
    for name in found:
        place = target / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRule(f"{place.parent} cannot be made: {error.strerror or error}.") from error
        write(place, (source / name).read_bytes())
    return found


def _files(source: Path, below: Path = Path()) -> list[Path]:
    """Folders that are links are gone through like others: Path.rglob does not in every Python."""
    found: list[Path] = []
    for path in (source / below).iterdir():
        if path.is_dir():
            found += _files(source, below / path.name)
        elif path.suffix == ".lua":
            found.append(below / path.name)
    return found
