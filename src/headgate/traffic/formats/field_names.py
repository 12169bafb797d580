"""Maps the names that logs give to fields to the names that rules use.

Names are compared in small letters, with _ for every other character and between words: `Remote-Addr` and
`remoteAddr` are remote_addr. A column
called host is the client's address, unless another column is; then it is the host of the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headgate.errors import InvalidLog
from headgate.rules.attributes import normalize_name, parse_attribute_name

TIME, REQUEST, TARGET, STATUS, DURATION, COST = "time", "request", "path", "status", "duration", "cost"

# Each list in the order of preference.
_SYNONYMS: Mapping[str, Sequence[str]] = {
    TIME: (
        *("time", "timestamp", "_timestamp", "ts", "time_local", "time_iso8601", "start_time", "datetime"),
        *("date_time", "date", "msec", "epoch", "at_us", "event_time", "when"),
    ),
    "address": (
        *(
            "address",
            "remote_addr",
            "client_ip",
            "clientip",
            "client_addr",
            "ip",
            "remote_ip",
            "source_ip",
            "src_ip",
        ),
        *(
            "request_remote_ip",
            "remote_host",
            "client",
            "client_host",
            "downstream_remote_address",
            "x_forwarded_for",
        ),
        *("http_x_forwarded_for", "http_x_real_ip", "host"),
    ),
    "method": ("method", "request_method", "http_method", "verb"),
    TARGET: ("path", "url", "uri", "request_uri", "target", "request_path", "x_envoy_original_path"),
    REQUEST: ("request", "request_line"),
    STATUS: ("status", "response", "response_code", "status_code", "http_status", "sc_status", "code"),
    DURATION: (
        *("duration", "duration_s", "duration_ms", "duration_us", "request_time", "latency", "latency_s"),
        *("latency_ms", "latency_us", "elapsed", "elapsed_ms"),
    ),
    "user": ("user", "remote_user", "username", "user_name", "user_id", "userid"),
    "host": ("authority", "http_host", "vhost", "server_name", "request_host", "host"),
    "header.user-agent": ("user_agent", "http_user_agent", "agent"),
    "header.referer": ("referer", "referrer", "http_referer"),
}
_PREFIXES = (("http_", "header."), ("cookie_", "cookie."), ("arg_", "argument."))
_word_end = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_other_characters = re.compile(r"[^a-z0-9]+")


def simplify(name: str) -> str:
    """Returns a field's name in small letters, with _ between the words.

    >>> simplify("@Remote-Addr"), simplify("clientIP")
    ('_remote_addr', 'client_ip')
    """
    return _other_characters.sub("_", _word_end.sub("_", name).lower())


def map_fields(names: Sequence[str], mapping: Mapping[str, str]) -> dict[str, int]:
    """Returns the index of the field for each attribute; `mapping` names fields, also by number.

    >>> map_fields(["host", "when", "url", "sku"], {"time": "when"})
    {'time': 1, 'address': 0, 'path': 2, 'sku': 3}
    """
    simple = [simplify(name) for name in names]
    indexes: dict[str, int] = {}
    for attribute, field in mapping.items():
        indexes[attribute_name(attribute)] = _field_index(names, simple, field)
    for attribute, synonyms in _SYNONYMS.items():
        if attribute in indexes:
            continue
        for synonym in synonyms:
            if synonym in simple and simple.index(synonym) not in indexes.values():
                indexes[attribute] = simple.index(synonym)
                break
    for index, name in enumerate(names):
        mapped_attribute = _mapped_attribute(name)
        if mapped_attribute and index not in indexes.values():
            indexes.setdefault(mapped_attribute, index)
    return indexes


def attribute_name(name: str) -> str:
    """Returns the attribute of a name that a user typed; raises InvalidRule if it cannot be one."""
    return normalize_name(parse_attribute_name(name))


def synonyms_of(attribute: str) -> str:
    """Lists the names that are read as an attribute, for messages."""
    return ", ".join(_SYNONYMS.get(attribute, (attribute,)))


def _field_index(names: Sequence[str], simple: Sequence[str], field: str) -> int:
    if field in names:
        return names.index(field)
    if simplify(field) in simple:
        return simple.index(simplify(field))
    if field.isdecimal() and 1 <= int(field) <= len(names):
        return int(field) - 1
    raise InvalidLog(
        f'The log has no field "{field}". It has: {", ".join(names)}; or give its number, from 1 to {len(names)}.'
    )


def _mapped_attribute(name: str) -> str | None:
    """Returns the attribute that a field is if it is none of the well-known ones; None if it cannot be one."""
    for prefix, attribute_prefix in _PREFIXES:
        if name.lower().startswith(prefix) and len(name) > len(prefix):
            return normalize_name(attribute_prefix + simplify(name[len(prefix) :]))
    name = simplify(name).strip("_")
    return name if name[:1].isalpha() else None
