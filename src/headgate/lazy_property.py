"""lazy_property: a property that is computed when it is first read."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["lazy_property"]

if TYPE_CHECKING:
    from functools import cached_property as lazy_property
else:

    class lazy_property:  # noqa: N801
        """functools.cached_property without its lock.

        Before Python 3.12 that is one lock for all objects of a class: it costs more than the work that it saves,
        and a child that is forked while another thread holds it waits for it for ever. Two threads that read at
        the same time both compute the value, and one of the two equal values stays.
        """

        def __init__(self, compute):
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value
