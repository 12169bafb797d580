"""Decodes a JSON body into a struct of check_schema.py, or explains which field is wrong and what it must be.

    cost must be a whole number of at least 0, not -1.
    checks[2]: "costs" is not a field. Did you mean cost?

msgspec alone decodes valid bodies. Only a body that msgspec rejects is checked again here: to make the
sentence, and to accept whole numbers that are written 3.0. To JSON, 3.0 and 3 are the same; to msgspec they are
not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from headgate.errors import InvalidCharge

T = TypeVar("T", bound=msgspec.Struct)

_MAX_SHOWN_CHARS = 40  # of a client's value that an error message repeats
_MISSING = object()
_error_path = re.compile(r" - at (`key` in )?`\$\.?([^`]*)`$")
_quoted_name = re.compile(r"`(.*?)`", re.S)
_path_step = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class JsonDecoder(Generic[T]):
    """Decodes bodies into one type of struct."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode

    def __call__(self, body: bytes) -> T:
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            return self._decode_leniently(body, str(error))
        except msgspec.DecodeError as error:
            raise InvalidCharge(_malformed_sentence(body, str(error))) from None
        except UnicodeDecodeError:
            raise InvalidCharge("The body is not UTF-8.") from None

    def _decode_leniently(self, body: bytes, message: str) -> T:
        try:
            raw = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raw = _MISSING
        if _convert_whole_costs(raw):
            try:
                return msgspec.convert(raw, self._kind)
            except msgspec.ValidationError as error:
                message = str(error)
        raise InvalidCharge(_error_sentence(self._kind, message, raw))


def _convert_whole_costs(raw: Any) -> bool:
    """Replaces costs of 3.0 by 3; returns whether there were any."""
    converted = False
    if isinstance(raw, dict):
        cost = raw.get("cost")
        if isinstance(cost, float) and cost.is_integer():
            raw["cost"], converted = int(cost), True
        for check in raw["checks"] if isinstance(raw.get("checks"), list) else ():
            converted = _convert_whole_costs(check) or converted
    return converted


def _malformed_sentence(body: bytes, message: str) -> str:
    if not body:
        return "The body is empty: an object in JSON is expected."
    if message.startswith("Input data was truncated"):
        return "The body is not JSON: it ends too early, or has half of a surrogate pair."
    return f"The body is not JSON: {message.removeprefix('JSON is malformed: ')}."


def _error_sentence(kind: type[msgspec.Struct], message: str, raw: Any) -> str:
    """Translates msgspec's error message into a sentence of ours."""
    match = _error_path.search(message)
    path = match[2] if match else ""
    steps = [name or int(number) if number != "..." else ... for name, number in _path_step.findall(path)]
    expected, value, location = _follow_path(inspect.type_info(kind), raw, steps)
    location = location or "The body"
    if message.startswith("Object contains unknown field") and isinstance(expected, inspect.StructType):
        name = _quoted_name.search(message)[1]  # type: ignore[index]
        fields = [field.name for field in expected.fields]
        matches = get_close_matches(name, fields, 1, 0.5)
        hint = f"Did you mean {matches[0]}?" if matches else f"Known are {', '.join(fields)}."
        return f'{location}: "{name[:_MAX_SHOWN_CHARS]}" is not a field. {hint}'
    if message.startswith("Object missing required field"):
        return f"{location}: {_quoted_name.search(message)[1]} is missing."  # type: ignore[index]
    if match and match[1]:
        return f"{location}: a name must be {_expectation(getattr(_unwrap(expected), 'key_type', None))}."
    actual = "" if value is _MISSING else f", not {_show(value)}"
    return f"{location} must be {_expectation(expected, value)}{actual}.{_nearest_word(expected, value)}"


def _nearest_word(expected: Any, value: Any) -> str:
    """Suggests the word that was meant, where only some are valid."""
    kind = _unwrap(expected)
    if not isinstance(kind, inspect.LiteralType) or not isinstance(value, str):
        return ""
    similar = get_close_matches(value.lower()[:_MAX_SHOWN_CHARS], map(str, kind.values), 1, 0.5)
    return f" Did you mean {similar[0]}?" if similar else ""


def _follow_path(expected: Any, value: Any, steps: list[Any]) -> tuple[Any, Any, str]:
    """Returns the expected type at the end of a path, the value there, and the location as text.

    A client's field name may look like a path, so a path that leads nowhere is followed as far as it leads.
    """
    location = ""
    for step in steps:
        match _unwrap(expected):
            case inspect.StructType(fields=fields) if step in (
                types := {field.name: field.type for field in fields}
            ):
                expected = types[step]
                value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
                location += f".{step}" if location else step
            case inspect.ListType(item_type=item_type) if isinstance(step, int):
                expected = item_type
                value = value[step] if isinstance(value, list) and len(value) > step else _MISSING
                location += f"[{step}]"
            case inspect.DictType(value_type=item_type):  # msgspec's message has no name
                expected = item_type
                name, value = _first_invalid(expected, value)
                location = f"{location}.{name[:_MAX_SHOWN_CHARS]}" if name else f"Each of {location}"
            case _:
                break
    return expected, value, location


def _first_invalid(expected: Any, values: Any) -> tuple[str, Any]:
    max_chars = next(kind.max_length or 0 for kind in expected.types if isinstance(kind, inspect.StrType))
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict | list) or (isinstance(value, str) and len(value) > max_chars):
            return name, value
    return "", _MISSING


def _unwrap(expected: Any) -> Any:
    """Returns the type without null and descriptions."""
    while isinstance(expected, inspect.Metadata):
        expected = expected.type
    if isinstance(expected, inspect.UnionType):
        types = [kind for kind in expected.types if not isinstance(kind, inspect.NoneType)]
        if len(types) == 1:
            return _unwrap(types[0])
    return expected


def _expectation(expected: Any, value: Any = None) -> str:
    match _unwrap(expected):
        case inspect.IntType(ge=minimum, le=maximum):
            return (
                f"a whole number of at most {maximum}"
                if _is_above(value, maximum)
                else f"a whole number of at least {minimum}"
            )
        case inspect.FloatType(ge=minimum, le=maximum):
            return f"a number from {minimum:g} to {maximum:.0f}"
        case inspect.LiteralType(values=[*others, last]):
            return f"{', '.join(map(str, others))} or {last}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType(max_length=max_chars):
            return f"a text of at most {max_chars} characters"
        case inspect.ListType():
            return "a list of at least one"
        case inspect.DictType(max_length=maximum):
            return f"an object of at most {maximum} names"
        case inspect.UnionType(types=types):
            text = next(kind for kind in types if isinstance(kind, inspect.StrType))
            return f"{_expectation(text)}, a number, true, false or null"
    return "an object"


def _is_above(value: Any, maximum: int | None) -> bool:
    return isinstance(value, int | float) and maximum is not None and value > maximum


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS:
        return f"one of {len(value)}"
    return msgspec.json.encode(value).decode()
