"""Limits views: @limit("5/s") on functions, coroutines, methods and classes.

A limited view carries its limits as attributes, one each, which other decorators and as_view() copy. So the
middleware sees them and decides them together with the rulebook. A limit that it did not see (of one method, or
hidden by another decorator) is decided where the view is called.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.utils.decorators import method_decorator

from headgate.errors import InvalidRule
from headgate.integrations.code_limit import CodeLimit, Key, LimitText, Refund, RequestFunction, RuleFields
from headgate.integrations.django.http_requests import call_anywhere, http_request
from headgate.integrations.django.request_state import RequestState
from headgate.integrations.django.view_marks import LIMIT_MARK
from headgate.integrations.request_record import RequestRecord

V = TypeVar("V", bound=Callable[..., Any])

_number = itertools.count()


class ViewLimit(CodeLimit):
    """A limit in code, as a decorator of views. CodeLimit describes the other arguments.

    block   False: a refused request reaches the view all the same, which looks at request.headgate.allowed
    """

    def __init__(
        self,
        limit: LimitText,
        key: Key = "address",
        *,
        block: bool = True,
        cost: int | str | RequestFunction | None = None,
        exempt: RequestFunction | Mapping[str, Any] | None = None,
        refund: Refund | None = None,
        cost_after: RequestFunction | None = None,
        name: str | None = None,
        **fields: Unpack[RuleFields],
    ) -> None:
        super().__init__(
            limit,
            call_anywhere(key) if callable(key) else key,
            cost=call_anywhere(cost) if callable(cost) else cost,
            exempt=call_anywhere(exempt) if callable(exempt) else exempt,
            refund=call_anywhere(refund) if callable(refund) else refund,
            cost_after=call_anywhere(cost_after) if callable(cost_after) else cost_after,
            name=name,
            **fields,
        )
        self.block = block
        self._attribute = f"{LIMIT_MARK}{next(_number):09}"

    def __call__(self, view: V) -> V:
        """Limits a view: a function, a coroutine, a method or a class."""
        if isinstance(view, type):
            return method_decorator(self, name="dispatch")(view)
        if not callable(view):
            raise InvalidRule(f"{self.location}: A limit decorates a view, not {view!r}.")
        wrapper: Any
        if iscoroutinefunction(view):

            @wraps(view)
            async def call_coroutine(*args: Any, **kwargs: Any) -> Any:
                return await self._acall(view, args, kwargs)

            wrapper = call_coroutine
        else:
            # A class has one dispatch for both kinds; the view that it makes is a coroutine if its methods are.
            awaited = isinstance(view, partial) and getattr(_owner(view), "view_is_async", False)

            @wraps(view)
            def call_function(*args: Any, **kwargs: Any) -> Any:
                return (self._acall if awaited else self._call)(view, args, kwargs)

            wrapper = call_function
        vars(wrapper)[self._attribute] = self
        return wrapper  # type: ignore[no-any-return]

    def check(self, request: Any) -> RequestRecord:
        """Decides this limit for a request now, in a view or a form; the record says whether it may pass."""
        return RequestState.of(request).check(self)

    async def acheck(self, request: Any) -> RequestRecord:
        """Does the same in async code."""
        return await RequestState.of(request).acheck(self)

    def _call(self, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = _find_request(self, args)
        alone = not RequestState.begun(request)  # no middleware will add the fields
        state = RequestState.of(request)
        response = state.decide_view(self, view)
        if response is None:
            try:
                response = view(*args, **kwargs)
            except BaseException as error:
                if alone:
                    state.finish(_failure_status(error))
                raise
        return state.complete(response) if alone else response

    async def _acall(self, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = _find_request(self, args)
        alone = not RequestState.begun(request)
        state = RequestState.of(request)
        response = await state.adecide_view(self, view)
        if response is None:
            try:
                response = await view(*args, **kwargs)
            except BaseException as error:
                if alone:
                    await state.afinish(_failure_status(error))
                raise
        return await state.acomplete(response) if alone else response


# Python names the function in the error of a wrong number of arguments; users know it as limit().
ViewLimit.__init__.__qualname__ = "limit"


def _find_request(limit: CodeLimit, args: Sequence[Any]) -> Any:
    """Returns the request among the arguments of a view: the first, or the second after self."""
    for each in args[:2]:
        if isinstance(http_request(each), HttpRequest):
            return each
    raise InvalidRule(f"{limit.location}: The limit decorates what is no view: its first argument is no request.")


def _failure_status(error: BaseException) -> int:
    """Returns the status of the response that Django will make of an exception."""
    return 404 if isinstance(error, Http404) else 403 if isinstance(error, PermissionDenied) else 500


def _owner(view: Any) -> Any:
    return getattr(view.func, "__self__", None)
