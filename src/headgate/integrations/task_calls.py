"""Calls of tasks: their attributes, and the limits that a task is given in code.

A call is one run of a task that a worker is about to begin. Its attributes:
    task             the name of the task, or of the actor
    queue            the queue that the message came from
    argument.NAME    an argument of the call, by its name, defaults included

The key of a limit in code names arguments: key="user_id" is argument.user_id; "task" and "queue" are themselves.
Without a key all calls of the task share one counter. Calls whose argument is None are counted together, unless
`missing` says otherwise. Functions (key, cost, exempt, attributes) receive a TaskCall.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar, Unpack

from headgate.errors import InvalidCharge, InvalidRule, InvalidSetting
from headgate.integrations.code_limit import BoundLimit, CodeLimit, CodeLimitFields, LimitText
from headgate.integrations.request_parts import KEY_ATTRIBUTE
from headgate.integrations.unknown_settings import reject_unknown
from headgate.rules.attributes import AttributeReader
from headgate.rules.matching.compile_rule import Match, parse_cost

P = ParamSpec("P")
R = TypeVar("R")

MARK = "__headgate_limits__"  # the limits of a function, on the function
_ARGUMENT = "argument."
_TASK_ATTRIBUTES = ("task", "queue")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class TaskCall:
    """A call of a task, as functions of the application receive it.

    task, queue    the names of the task and of its queue; None for a queue that is not known
    arguments      the arguments by name, with defaults
    native         the request of Celery, or the message of Dramatiq
    """

    task: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    native: Any = None

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes by which rules see the call."""
        arguments = {_ARGUMENT + name: value for name, value in self.arguments.items()}
        return {"task": self.task, "queue": self.queue, **arguments}


TaskFunction = Callable[[TaskCall], Any]


class TaskLimit(CodeLimit):
    """A limit of a task, as a decorator; CodeLimit describes the arguments.

    >>> @TaskLimit("100/minute burst 10", key="user_id")
    ... def send(user_id: int) -> None: ...
    """

    def __init__(
        self,
        limit: LimitText,
        key: str | Sequence[str] | TaskFunction | None = None,
        *,
        cost: int | str | TaskFunction | None = None,
        name: str | None = None,
        exempt: TaskFunction | Mapping[str, Any] | None = None,
        **fields: Unpack[CodeLimitFields],
    ) -> None:
        names = [key] if isinstance(key, str) else list(key) if isinstance(key, list | tuple) else []
        self._names: list[str] = [each for each in names if isinstance(each, str) and each]
        unknown = [each for each in fields if each not in CodeLimitFields.__optional_keys__]
        if self._names and len(self._names) == len(names):
            key = [_attribute(each) for each in names]
        self.cost_attribute: str | None = None
        if isinstance(cost, str):
            self._names.append(cost)
            cost = self.cost_attribute = _attribute(cost)
        if self._names:
            fields.setdefault("missing", "one")
        super().__init__(limit, key, cost=cost, name=name, exempt=exempt, **({} if unknown else fields))
        try:
            reject_unknown(unknown, _KEYWORDS, "the limit of a task")
        except InvalidSetting as error:
            raise InvalidRule(f"{self.location}: {error}") from None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Limits a task's function. Raises InvalidRule if it has no argument that the key or the cost names."""
        if not callable(function):
            raise InvalidRule(f"{self.location}: A limit decorates the function of a task, not {function!r}.")
        self.check_arguments(function)
        setattr(function, MARK, (self, *limits_of(function)))
        return function

    def check_arguments(self, function: Callable[..., Any]) -> None:
        """Raises InvalidRule unless the function has the arguments that the limit names."""
        parameters = inspect.signature(function).parameters.values()
        if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            return
        arguments = [each.name for each in parameters if each.kind not in _VARIADIC]
        for name in self._names:
            argument = name.removeprefix(_ARGUMENT)
            if argument not in arguments and name not in _TASK_ATTRIBUTES:
                similar = get_close_matches(argument, arguments, 1)
                hint = f"Did you mean {similar[0]}?" if similar else f"It has {_listed(arguments)}."
                raise InvalidRule(
                    f'{self.location}: "{function.__name__}" has no argument "{argument}" to be limited by. {hint}'
                )

    @property
    def named_arguments(self) -> list[str]:
        """The arguments that the key and the cost name."""
        return [name.removeprefix(_ARGUMENT) for name in self._names if name not in _TASK_ATTRIBUTES]


# Python names the function in the error of a wrong number of arguments; users know it as limit().
TaskLimit.__init__.__qualname__ = "limit"

_KEYWORDS = ("key", "cost", "name", "exempt", *CodeLimitFields.__optional_keys__)


def limits_of(function: object) -> tuple[TaskLimit, ...]:
    """Returns the limits that decorate a function, the outermost first."""
    marked: tuple[TaskLimit, ...] = getattr(function, MARK, ())
    return marked


def read_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the arguments of a call by name; None if the function cannot be called with them."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        else:
            arguments[name] = value
    return arguments


def match_call(call: TaskCall, bound: BoundLimit, attributes: Mapping[str, Any]) -> Match | None:
    """Applies a limit in code to a call; None if it does not apply."""
    limit = bound.limit
    if limit.exempt_function is not None and limit.exempt_function(call):
        return None
    values = AttributeReader(limit.uses)({**attributes, KEY_ATTRIBUTE: _key(call, limit)})
    cost = 1
    if limit.cost_function is not None:
        cost = limit.cost_function(call)
        limit.check_returned_cost(cost)
    elif isinstance(limit, TaskLimit) and limit.cost_attribute is not None:
        _check_cost_argument(limit, limit.cost_attribute, attributes, values)
    return bound.match(values, cost)


def _check_cost_argument(
    limit: TaskLimit, name: str, attributes: Mapping[str, Any], values: Mapping[str, str]
) -> None:
    """Raises InvalidCharge if a call has an argument that is no cost. A rule would take it for a missing one, and
    charge 1."""
    value, when = attributes.get(name), limit.rule.when
    if value is None or (when is not None and when.bind(values) is None):
        return
    if parse_cost(values.get(name)) is None:
        raise InvalidCharge(
            f"{limit.location}: The cost of a call is its argument {name.removeprefix(_ARGUMENT)}, a whole number "
            f"from 0 to 2^53, not {value!r}."
        )


def _key(call: TaskCall, limit: CodeLimit) -> object:
    """Returns the key of a call by the limit's function; None if it has none, or if the call is exempt."""
    key = None if limit.key_function is None else limit.key_function(call)
    if key == "" and limit.rule.missing == "skip":
        raise InvalidCharge(
            f'{limit.location}: The key of a call is "", which would exempt it from the limit. Return None where '
            'you mean that, or say how such calls count: missing="one" or "deny".'
        )
    return key


def _attribute(name: str) -> str:
    return name if name in _TASK_ATTRIBUTES or name.startswith(_ARGUMENT) else _ARGUMENT + name


def _listed(arguments: list[str]) -> str:
    return ", ".join(arguments) if arguments else "no arguments"
