"""Builds and parses the Redis keys of counts. The layout is an API, and versioned as one.

    hg2:<algorithm>:<name>:{<key>}

`hg` is the prefix and 2 the layout's version, so that two versions can run side by side. Different algorithms
store different states, so a count belongs to one: tb is a token bucket's. The braces are Redis Cluster's hash tag:
all counts of one key lie in one slot. Different names and keys never collide: a character that could be mistaken
for a separator is written %XX, and a key longer than 200 bytes is written %# and its SHA-256, which no escaped key
can look like.

Other state of a key has the same hash tag: lt is its lockout, oe its override, pe its pause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from headgate.errors import InvalidRule

LAYOUT = 2
MAX_KEY_BYTES = 200

_find_special = re.compile(rb"[\x00-\x20\x7f%{}]").search
_special_chars = re.compile(rb"[\x00-\x20\x7f%{}]")
_escapes = re.compile(rb"%([0-9A-F]{2})")
_key_pattern = re.compile(rb"([a-z]{2}):([^:{}]*):\{([^{}]*)\}", re.S)
_special_in_name = re.compile(rb"[\x00-\x20\x7f%{}:]")


def key_head(prefix: str, algorithm: str, name: str) -> bytes:
    """Returns everything before the key itself."""
    raw = prefix.encode()
    if not raw or _special_in_name.search(raw):
        raise InvalidRule(f"The prefix {prefix!r} must not be empty nor hold spaces, braces, % or a colon.")
    escaped_name = _special_in_name.sub(_escape, name.encode("utf-8", "surrogatepass"))
    return b"%b%d:%b:%b:{" % (raw, LAYOUT, initials(algorithm), escaped_name)


def members_key(prefix: str) -> bytes:
    """Returns the key of the set of processes that share the limits. It has one colon, unlike every head of a
    count, so the two never clash."""
    return b"%b%d:members" % (prefix.encode(), LAYOUT)


def rules_key(prefix: str) -> bytes:
    """Returns the key of the published rulebooks. No head equals it either."""
    return b"%b%d:rules" % (prefix.encode(), LAYOUT)


def adaptive_limits_key(prefix: str) -> bytes:
    """Returns the key of the adaptive limits of all processes. The braces are its hash tag."""
    return b"%b%d:{adaptive}" % (prefix.encode(), LAYOUT)


def recent_head(prefix: str) -> bytes:
    """Returns everything before the second of a key of recent records. The braces are their hash tag."""
    return b"%b%d:{recent}:" % (prefix.encode(), LAYOUT)


def scripts_key(prefix: str) -> bytes:
    """Returns the key of the scripts' texts by SHA1, for gateways. No head equals it either."""
    return b"%b%d:scripts" % (prefix.encode(), LAYOUT)


def audit_key(prefix: str) -> bytes:
    """Returns the key of the stream of operators' changes. No head equals it either."""
    return b"%b%d:audit" % (prefix.encode(), LAYOUT)


def nodes_key(prefix: str) -> bytes:
    """Returns the key of the hash in which services report their state. No head equals it either."""
    return b"%b%d:nodes" % (prefix.encode(), LAYOUT)


def staged_key(prefix: str) -> bytes:
    """Returns the key of the plan of a staged enforcement. No head equals it either."""
    return b"%b%d:staged" % (prefix.encode(), LAYOUT)


def counts_head(prefix: str) -> bytes:
    """Returns everything before the suffix of a key of shared counts. The braces are their hash tag."""
    return b"%b%d:{counts}:" % (prefix.encode(), LAYOUT)


def initials(algorithm: str) -> bytes:
    """Abbreviates an algorithm: first letters of two words, first and last of one: token_bucket is tb, slots is
    ss."""
    first, _, second = algorithm.partition("_")
    return f"{first[0]}{second[0] if second else first[-1]}".encode()


def build_key(key_start: bytes, key: str) -> bytes:
    """Returns the whole Redis key."""
    return b"%b%b}" % (key_start, escape_key(key))


def escape_keys(keys: Sequence[str]) -> list[bytes]:
    """Escapes many keys: most hold nothing special, and one search over all of them finds that out."""
    try:
        raw = [key.encode() for key in keys]
    except UnicodeEncodeError:
        return [escape_key(key) for key in keys]
    if _find_special(b"".join(raw)) or len(max(raw, key=len)) > MAX_KEY_BYTES:
        return [escape_key(key) for key in keys]
    return raw


def escape_key(key: str) -> bytes:
    """Escapes a key, so that no two different keys look alike."""
    raw = key.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_KEY_BYTES:
        return b"%#" + sha256(raw).hexdigest().encode()
    return _special_chars.sub(_escape, raw) if _find_special(raw) else raw


def unescape_key(name: bytes) -> str:
    """Returns the key that was escaped; a hashed one cannot be restored, and stays as it is stored."""
    if name.startswith(b"%#"):
        return name.decode()
    raw = _escapes.sub(lambda match: bytes.fromhex(match[1].decode()), name)
    return raw.decode("utf-8", "surrogatepass")


class ParsedKey(NamedTuple):
    """The parts of one of our Redis keys. A key that was hashed stays as it is stored."""

    initials: bytes
    name: str
    key: str
    tag: bytes


def parse(prefix: str, redis_key: bytes) -> ParsedKey | None:
    """Parses what `head` and `tagged` built; None if it is no count's key under this prefix."""
    match = _key_pattern.fullmatch(redis_key.removeprefix(b"%b%d:" % (prefix.encode(), LAYOUT)))
    if match is None or not redis_key.startswith(b"%b%d:" % (prefix.encode(), LAYOUT)):
        return None
    try:
        return ParsedKey(match[1], unescape_key(match[2]), unescape_key(match[3]), match[3])
    except UnicodeDecodeError:
        return None


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
