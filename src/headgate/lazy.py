"""A property that is worked out when it is first read."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["lazy_property"]

if TYPE_CHECKING:
    from functools import cached_property as lazy_property
else:

    class lazy_property:  # noqa: N801
        """functools.cached_property without its lock.

        Before Python 3.12 that is one lock for all objects of a class: it costs more than the work that is spared,
        and a child that is forked while another thread is inside would wait for it for ever. Two threads that read
        at the same time both work it out, and one of the two equal values stays.
        """

        def __init__(self, work):
            self._work, self.__doc__ = work, work.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, of, owner=None):
            if of is None:
                return self
            value = of.__dict__[self._name] = self._work(of)
            return value
