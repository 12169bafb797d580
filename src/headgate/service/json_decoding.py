"""A body becomes what schema.py says, or a sentence says why not: which field, and what it must be.

    cost must be a whole number of at least 0, not -1.
    checks[2]: "costs" is not a field. Did you mean cost?

What is right is read by msgspec alone. Only what it refuses is looked at again here, for the sentence, and for
whole numbers written 3.0: JSON knows no difference, and msgspec does.
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

_SHOWN = 40  # characters of what was sent that are told back
_MISSING = object()
_at = re.compile(r" - at (`key` in )?`\$\.?([^`]*)`$")
_named = re.compile(r"`(.*?)`", re.S)
_step = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class Reader(Generic[T]):
    """Reads bodies of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode

    def __call__(self, body: bytes) -> T:
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            return self._again(body, str(error))
        except msgspec.DecodeError as error:
            raise InvalidCharge(_malformed(body, str(error))) from None
        except UnicodeDecodeError:
            raise InvalidCharge("The body is not UTF-8.") from None

    def _again(self, body: bytes, words: str) -> T:
        try:
            raw = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raw = _MISSING
        if _whole(raw):
            try:
                return msgspec.convert(raw, self._kind)
            except msgspec.ValidationError as error:
                words = str(error)
        raise InvalidCharge(_sentence(self._kind, words, raw))


def _whole(raw: Any) -> bool:
    """Write costs of 3.0 as 3; whether there were any."""
    found = False
    if isinstance(raw, dict):
        cost = raw.get("cost")
        if isinstance(cost, float) and cost.is_integer():
            raw["cost"], found = int(cost), True
        for each in raw["checks"] if isinstance(raw.get("checks"), list) else ():
            found = _whole(each) or found
    return found


def _malformed(body: bytes, words: str) -> str:
    if not body:
        return "The body is empty: an object in JSON is expected."
    if words.startswith("Input data was truncated"):
        return "The body is not JSON: it ends too early, or has half of a surrogate pair."
    return f"The body is not JSON: {words.removeprefix('JSON is malformed: ')}."


def _sentence(kind: type[msgspec.Struct], words: str, raw: Any) -> str:
    """msgspec's words in ours."""
    found = _at.search(words)
    path = found[2] if found else ""
    steps = [name or int(number) if number != "..." else ... for name, number in _step.findall(path)]
    expected, value, place = _followed(inspect.type_info(kind), raw, steps)
    place = place or "The body"
    if words.startswith("Object contains unknown field") and isinstance(expected, inspect.StructType):
        name = _named.search(words)[1]  # type: ignore[index]
        known = [field.name for field in expected.fields]
        near = get_close_matches(name, known, 1, 0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
        return f'{place}: "{name[:_SHOWN]}" is not a field. {hint}'
    if words.startswith("Object missing required field"):
        return f"{place}: {_named.search(words)[1]} is missing."  # type: ignore[index]
    if found and found[1]:
        return f"{place}: a name must be {_form(getattr(_alone(expected), 'key_type', None))}."
    shown = "" if value is _MISSING else f", not {_shown(value)}"
    return f"{place} must be {_form(expected, value)}{shown}."


def _followed(expected: Any, value: Any, steps: list[Any]) -> tuple[Any, Any, str]:
    """What is expected at the end of a path, what is there, and where that is. A name that somebody sent may look
    like a path, so one that leads nowhere is followed as far as it leads."""
    place = ""
    for step in steps:
        match _alone(expected):
            case inspect.StructType(fields=fields) if step in (known := {each.name: each.type for each in fields}):
                expected = known[step]
                value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
                place += f".{step}" if place else step
            case inspect.ListType(item_type=item) if isinstance(step, int):
                expected = item
                value = value[step] if isinstance(value, list) and len(value) > step else _MISSING
                place += f"[{step}]"
            case inspect.DictType(value_type=item):  # msgspec does not say which name it was
                expected = item
                name, value = _first_bad(expected, value)
                place = f"{place}.{name[:_SHOWN]}" if name else f"Each of {place}"
            case _:
                break
    return expected, value, place


def _first_bad(expected: Any, values: Any) -> tuple[str, Any]:
    longest = next(each.max_length or 0 for each in expected.types if isinstance(each, inspect.StrType))
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict | list) or (isinstance(value, str) and len(value) > longest):
            return name, value
    return "", _MISSING


def _alone(expected: Any) -> Any:
    """Without null and descriptions."""
    while isinstance(expected, inspect.Metadata):
        expected = expected.type
    if isinstance(expected, inspect.UnionType):
        others = [each for each in expected.types if not isinstance(each, inspect.NoneType)]
        if len(others) == 1:
            return _alone(others[0])
    return expected


def _form(expected: Any, value: Any = None) -> str:
    match _alone(expected):
        case inspect.IntType(ge=least, le=most):
            return (
                f"a whole number of at most {most}"
                if _above(value, most)
                else f"a whole number of at least {least}"
            )
        case inspect.FloatType(ge=least, le=most):
            return f"a number from {least:g} to {most:.0f}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType(max_length=longest):
            return f"a text of at most {longest} characters"
        case inspect.ListType():
            return "a list of at least one"
        case inspect.DictType(max_length=most):
            return f"an object of at most {most} names"
        case inspect.UnionType(types=types):
            text = next(each for each in types if isinstance(each, inspect.StrType))
            return f"{_form(text)}, a number, true, false or null"
    return "an object"


def _above(value: Any, most: int | None) -> bool:
    return isinstance(value, int | float) and most is not None and value > most


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, str) and len(value) > _SHOWN:
        return f"one of {len(value)}"
    return msgspec.json.encode(value).decode()
