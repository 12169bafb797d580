"""The key that a count is kept under: an API, and versioned as one.

    hg2:<algorithm>:<name>:{<key>}

`hg` is the prefix and 2 the layout's version, so that two versions can run side by side. Different algorithms keep
different things, so a count belongs to one: tb is a token bucket's. The braces are Redis Cluster's: all counts of
one key lie in one slot. Different names and keys never meet: whatever could be mistaken
for a separator is written %XX, and a key longer than 200 bytes is written %# and its SHA-256, which no escaped
key can look like.

What a rule keeps beside a key's counts lies under the same braces: lt is its lockout, oe its override.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from headgate.errors import InvalidRule

LAYOUT = 2
LONGEST = 200

_special = re.compile(rb"[\x00-\x20\x7f%{}]").search
_specials = re.compile(rb"[\x00-\x20\x7f%{}]")
_escapes = re.compile(rb"%([0-9A-F]{2})")
_filed = re.compile(rb"([a-z]{2}):([^:{}]*):\{([^{}]*)\}", re.S)
_name_specials = re.compile(rb"[\x00-\x20\x7f%{}:]")


def head(prefix: str, algorithm: str, name: str) -> bytes:
    """Everything before the key itself."""
    raw = prefix.encode()
    if not raw or _name_specials.search(raw):
        raise InvalidRule(f"The prefix {prefix!r} must not be empty nor hold spaces, braces, % or a colon.")
    filed_under = _name_specials.sub(_escape, name.encode("utf-8", "surrogatepass"))
    return b"%b%d:%b:%b:{" % (raw, LAYOUT, initials(algorithm), filed_under)


def members(prefix: str) -> bytes:
    """Where the processes are counted that share the limits. No head looks like it: this has one colon."""
    return b"%b%d:members" % (prefix.encode(), LAYOUT)


def rules(prefix: str) -> bytes:
    """Where the published rulebook lies. No head looks like it either."""
    return b"%b%d:rules" % (prefix.encode(), LAYOUT)


def scripts(prefix: str) -> bytes:
    """Where the texts of the scripts lie that gateways call, by their SHA1. Nor does one look like this."""
    return b"%b%d:scripts" % (prefix.encode(), LAYOUT)


def initials(algorithm: str) -> bytes:
    """Of two words their first letters, of one word its first and last: token_bucket is tb, slots is ss."""
    first, _, second = algorithm.partition("_")
    return f"{first[0]}{second[0] if second else first[-1]}".encode()


def tagged(head: bytes, key: str) -> bytes:
    """The whole Redis key."""
    return b"%b%b}" % (head, escaped(key))


def all_escaped(keys: Sequence[str]) -> list[bytes]:
    """The same for many: most keys hold nothing special, and one look at all of them tells."""
    try:
        raw = [key.encode() for key in keys]
    except UnicodeEncodeError:
        return [escaped(key) for key in keys]
    if _special(b"".join(raw)) or len(max(raw, key=len)) > LONGEST:
        return [escaped(key) for key in keys]
    return raw


def escaped(key: str) -> bytes:
    """The key, so that no two different ones look alike."""
    raw = key.encode("utf-8", "surrogatepass")
    if len(raw) > LONGEST:
        return b"%#" + sha256(raw).hexdigest().encode()
    return _specials.sub(_escape, raw) if _special(raw) else raw


def unescaped(name: bytes) -> str:
    """The key that was escaped; one that was hashed cannot be told, and stays as it is stored."""
    if name.startswith(b"%#"):
        return name.decode()
    raw = _escapes.sub(lambda found: bytes.fromhex(found[1].decode()), name)
    return raw.decode("utf-8", "surrogatepass")


class Filed(NamedTuple):
    """What a Redis key of ours says: whose count it is. A key that was hashed stays as it is stored."""

    initials: bytes
    name: str
    key: str
    tag: bytes


def read(prefix: str, redis_key: bytes) -> Filed | None:
    """The inverse of `head` and `tagged`; None if no count of this prefix can be called so."""
    found = _filed.fullmatch(redis_key.removeprefix(b"%b%d:" % (prefix.encode(), LAYOUT)))
    if found is None or not redis_key.startswith(b"%b%d:" % (prefix.encode(), LAYOUT)):
        return None
    try:
        return Filed(found[1], unescaped(found[2]), unescaped(found[3]), found[3])
    except UnicodeDecodeError:
        return None


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
