"""The schemes of engine URLs, and the sentences for URLs that cannot be read.

Law (tests/engine/test_topology.py): no sentence holds a part of a login.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Literal

from headgate.errors import InvalidRule

Kind = Literal["memory", "one", "unix", "cluster", "sentinel"]

MEMORY = "memory"
_ONE = ("redis", "rediss", "valkey", "valkeys")
_UNIX = ("unix", "redis+unix", "valkey+unix")
_KINDS: dict[str, Kind] = {
    MEMORY: "memory",
    **dict.fromkeys(_ONE, "one"),
    **dict.fromkeys(_UNIX, "unix"),
    **{f"{scheme}+cluster": "cluster" for scheme in _ONE},
    **{f"{scheme}+sentinel": "sentinel" for scheme in _ONE},
}
FORMS: dict[Kind, str] = {
    "one": "user:password@host:6379/0",
    "unix": "user:password@/path/to.sock?db=0",
    "cluster": "user:password@host:6379,host:6380",
    "sentinel": "user:password@host:26379,host:26379/name-of-the-master/0",
}

_word = re.compile(r"[A-Za-z0-9+.-]*")
_place = re.compile(r"[A-Za-z0-9._-]+:[0-9]+(?:/[0-9]+)?")


def scheme_of(url: object) -> str:
    """Return the scheme of an engine's URL; InvalidRule says what a URL looks like."""
    if not isinstance(url, str):
        raise InvalidRule(f"An engine's URL is a text such as redis://host:6379/0, not a {type(url).__name__}.")
    scheme, colon, _ = url.partition("://")
    if not colon or not _word.fullmatch(scheme):
        shown = url.rpartition("@")[2].partition("?")[0]
        form = f"redis://{shown}" if _place.fullmatch(shown) else "redis://host:6379/0"
        raise InvalidRule(f'"{shown[:80]}" is not an engine URL. Write {form}, or memory://.')
    if scheme not in _KINDS:
        near = get_close_matches(scheme, _KINDS, 1)
        hint = f"Did you mean {near[0]}://?" if near else f"Known: {', '.join(_KINDS)}."
        raise InvalidRule(f"{scheme}://… is not an engine URL. Write redis://host:6379/0, or memory://. {hint}")
    return scheme


def kind_of(scheme: str) -> Kind:
    """Tell what a scheme leads to."""
    return _KINDS[scheme]


def is_tls(scheme: str) -> bool:
    """Whether connections are encrypted."""
    return scheme.partition("+")[0] in ("rediss", "valkeys")


def unreadable(scheme: str, why: str = "") -> InvalidRule:
    """The error for a URL whose parts cannot be told from each other. `why` must not hold a part of the URL."""
    return InvalidRule(
        f"The engine's URL {scheme}://… cannot be read{why}. Write {scheme}://{FORMS[kind_of(scheme)]}, "
        "with / and other special characters of the password as %2F and so on."
    )
