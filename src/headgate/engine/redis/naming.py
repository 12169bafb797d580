"""The key that a count is kept under: an API, and versioned as one.

    hg1:<algorithm>:<name>:{<key>}

`hg` is the prefix and 1 the layout's version, so that two versions can run side by side. Different algorithms keep
different things, so a count belongs to one: tb is a token bucket's. The braces are Redis Cluster's: all counts of
one key lie in one slot. Different names and keys never meet: whatever could be mistaken
for a separator is written %XX, and a key longer than 200 bytes is written %# and its SHA-256, which no escaped
key can look like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

from headgate.errors import InvalidRule

LAYOUT = 1
LONGEST = 200

_special = re.compile(rb"[\x00-\x20\x7f%{}]").search
_specials = re.compile(rb"[\x00-\x20\x7f%{}]")
_name_specials = re.compile(rb"[\x00-\x20\x7f%{}:]")


def head(prefix: str, algorithm: str, name: str) -> bytes:
    """Everything before the key itself."""
    raw = prefix.encode()
    if not raw or _name_specials.search(raw):
        raise InvalidRule(f"The prefix {prefix!r} must not be empty nor hold spaces, braces, % or a colon.")
    filed_under = _name_specials.sub(_escape, name.encode("utf-8", "surrogatepass"))
    return b"%b%d:%b:%b:{" % (raw, LAYOUT, _initials(algorithm), filed_under)


def members(prefix: str) -> bytes:
    """Where the processes are counted that share the limits. No head looks like it: this has one colon."""
    return b"%b%d:members" % (prefix.encode(), LAYOUT)


def _initials(algorithm: str) -> bytes:
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


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
