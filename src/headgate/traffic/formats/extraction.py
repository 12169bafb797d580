"""Turns the fields of a line into a RecordedCall, and computes only what is needed of it.

Values that repeat, such as addresses and paths, are normalized once. A hostname is a valid address: it is kept in
small letters. `-` and an empty text are missing values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from headgate.rules.attributes import Attributes, normalize_host, request, to_text
from headgate.rules.ip_networks import canonical
from headgate.traffic.formats.field_names import DURATION, REQUEST, STATUS, TARGET, TIME
from headgate.traffic.formats.timestamps import SECOND_US
from headgate.traffic.recorded_call import RecordedCall

MAX_CACHED = 100_000  # addresses, paths and requests that are normalized once
MAX_HOSTNAME_LENGTH = 253

V = TypeVar("V")
Extract = Callable[[Sequence[Any], int], RecordedCall]

_put = dict.__setitem__
_new_call = tuple.__new__
_ipv4 = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}", re.ASCII)
_address_with_port = re.compile(r"(\d+\.\d+\.\d+\.\d+):\d+|\[([0-9a-fA-F:.]+)\](?::\d+)?")
_DURATION_UNITS = {"_ms": 1_000, "_us": 1}


class Cache(dict[str, V]):
    """The values that a function makes of texts; emptied when it is full."""

    def __init__(self, compute: Callable[[str], V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, text: str) -> V:
        if len(self) >= MAX_CACHED:
            self.clear()
        value = self[text] = self._compute(text)
        return value


def normalize_address(text: str) -> str:
    """Returns an address in canonical form, or a hostname in small letters; an empty text if it is neither.

    >>> normalize_address("::FFFF:192.0.2.7"), normalize_address("Proxy7.example.com"), normalize_address("unix:")
    ('192.0.2.7', 'proxy7.example.com', '')
    """
    if _ipv4.fullmatch(text):
        return text  # in canonical form already
    if "," in text:  # X-Forwarded-For: the last one is the client of the proxy that wrote the log
        text = text.rpartition(",")[2].strip()
    address = canonical(text)
    if address is not None:
        return address
    if match := _address_with_port.fullmatch(text):
        return canonical(match[1] or match[2]) or ""
    if text in ("", "-", "unix:") or len(text) > MAX_HOSTNAME_LENGTH or not text.isprintable() or " " in text:
        return ""
    return text.lower().rstrip(".")


def _path_of(target: str) -> str:
    return request("GET", target).get("path", "")


def _method_and_target(text: str) -> tuple[str, str]:
    """Splits the first line of a request; both are empty if it is none."""
    method, _, rest = text.partition(" ")
    target = rest.rpartition(" ")[0] or rest
    return (method.upper(), target) if target and method.isalpha() else ("", "")


class Extraction:
    """Makes calls of the fields of lines; `names` are the log's own names of its fields, by index."""

    def __init__(
        self,
        indexes: Mapping[str, int],
        names: Sequence[str],
        needed: Collection[str] | None,
        parse_time: Callable[[str], int],
        duration_unit_us: int | None = None,
        cost_index: int | None = None,
    ) -> None:
        self._indexes, self._needed = indexes, needed
        self._parse_time, self._cost_index = parse_time, cost_index
        self._addresses = Cache(normalize_address)
        self._paths = Cache(_path_of)
        self._hosts = Cache(normalize_host)
        self._duration_unit_us, self._logged_at_end = _duration_unit(indexes, names, duration_unit_us)
        self._steps = list(self._make_steps())

    def _needs(self, attribute: str) -> bool:
        return self._needed is None or attribute in self._needed

    def _make_steps(self) -> list[Callable[[Attributes, Sequence[Any]], None]]:
        steps: list[Callable[[Attributes, Sequence[Any]], None]] = []
        query = self._needed is None or any(name.startswith("argument.") for name in self._needed)
        from_request = REQUEST in self._indexes and TARGET not in self._indexes
        if from_request and (self._needs("path") or self._needs("method") or query):
            steps.append(self._request_step(self._indexes[REQUEST], query))
        for attribute, index in self._indexes.items():
            if attribute in (TIME, REQUEST, DURATION):
                continue
            if attribute == TARGET:
                if self._needs("path") or query:
                    steps.append(self._target_step(index, query))
            elif self._needs(attribute):
                steps.append(self._value_step(attribute, index))
        return steps

    def _request_step(self, index: int, query: bool) -> Callable[[Attributes, Sequence[Any]], None]:
        paths, requests, needs_method = self._paths, Cache(_method_and_target), self._needs("method")

        def step(attributes: Attributes, values: Sequence[Any]) -> None:
            method, target = requests[values[index] or ""]
            if not target:
                return
            if needs_method:
                _put(attributes, "method", method)
            _put_target(attributes, target, paths, query)

        return step

    def _target_step(self, index: int, query: bool) -> Callable[[Attributes, Sequence[Any]], None]:
        paths = self._paths

        def step(attributes: Attributes, values: Sequence[Any]) -> None:
            target = values[index]
            if target and target != "-":
                _put_target(attributes, to_text(target), paths, query)

        return step

    def _value_step(self, attribute: str, index: int) -> Callable[[Attributes, Sequence[Any]], None]:
        normalize: Callable[[str], str]
        if attribute == "address":
            normalize = self._addresses.__getitem__
        elif attribute == "host":
            normalize = self._hosts.__getitem__
        elif attribute == "method":
            normalize = str.upper
        else:
            return _plain_step(attribute, index)

        def step(attributes: Attributes, values: Sequence[Any]) -> None:
            value = values[index]
            if value is None or value == "" or value == "-":
                return
            if normalized := normalize(value if type(value) is str else to_text(value)):
                _put(attributes, attribute, normalized)

        return step

    def compile(self) -> Extract:
        """Returns the function that makes calls. It raises ValueError or IndexError if a time cannot be read."""
        parse_time, duration_of, attributes_of = self._parse_time, self._duration_us, self._compile_attributes()
        time_index, status_index, cost_index = self._indexes[TIME], self._indexes.get(STATUS), self._cost_index
        has_duration, logged_at_end = self._duration_unit_us is not None, self._logged_at_end
        statuses = {str(status): status for status in range(100, 600)}

        def extract(values: Sequence[Any], line: int) -> RecordedCall:
            time_text = values[time_index]
            time_us = parse_time(time_text if type(time_text) is str else _text(time_text))
            duration_us = duration_of(values) if has_duration else None
            if duration_us is not None and logged_at_end:
                time_us -= duration_us
            status = None
            if status_index is not None:
                status_text = values[status_index]
                status = statuses.get(status_text) or _whole(status_text)
            cost = None if cost_index is None else _whole(values[cost_index])
            fields = (time_us, attributes_of(values), status, duration_us, cost, line, None)
            return _new_call(RecordedCall, fields)

        return extract

    def _compile_attributes(self) -> Callable[[Sequence[Any]], Attributes]:
        steps, new = self._steps, Attributes.__new__

        def attributes_of(values: Sequence[Any]) -> Attributes:
            attributes = new(Attributes)
            for step in steps:
                step(attributes, values)
            return attributes

        if self._needed is None or {*self._needed} != {"address"} or "address" not in self._indexes:
            return attributes_of
        index = self._indexes["address"]
        by_address: dict[Any, Attributes] = {}  # calls of one address have the same attributes

        def shared_attributes(values: Sequence[Any]) -> Attributes:
            raw = values[index]
            attributes = by_address.get(raw)
            if attributes is None:
                if len(by_address) >= MAX_CACHED:
                    by_address.clear()
                attributes = by_address[raw] = attributes_of(values)
            return attributes

        return shared_attributes

    def _duration_us(self, values: Sequence[Any]) -> int | None:
        if self._duration_unit_us is None:
            return None
        try:
            return max(0, round(float(values[self._indexes[DURATION]]) * self._duration_unit_us))
        except (TypeError, ValueError, OverflowError):
            return None


def _plain_step(attribute: str, index: int) -> Callable[[Attributes, Sequence[Any]], None]:
    """Returns a step for an attribute whose values are taken as they are."""

    def step(attributes: Attributes, values: Sequence[Any]) -> None:
        value = values[index]
        if value is not None and value != "" and value != "-":
            _put(attributes, attribute, value if type(value) is str else to_text(value))

    return step


def _put_target(attributes: Attributes, target: str, paths: Cache[str], query: bool) -> None:
    if query and "?" in target:
        for name, value in request("GET", target).items():
            if name.startswith("argument."):
                _put(attributes, name, value)
    path = paths[target.partition("?")[0]]
    if path:
        _put(attributes, "path", path)


def _duration_unit(
    indexes: Mapping[str, int], names: Sequence[str], unit_us: int | None
) -> tuple[int | None, bool]:
    """Returns the unit of durations, and whether the time of a line is the end of its call, as nginx writes it."""
    if DURATION not in indexes:
        return None, False
    name = names[indexes[DURATION]].lower()
    return unit_us or _DURATION_UNITS.get(name[-3:], SECOND_US), name == "request_time"


def _text(value: Any) -> str:
    return value if type(value) is str else "" if value is None else to_text(value)


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
