"""HTML from templates: every value is escaped, unless it is HTML that was made here.

html('<td class="number">{calls}</td>', calls="<b>")     <td class="number">&lt;b&gt;</td>
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Formatter
from typing import Any


class Html(str):
    """A text that is HTML already. It is shown as it is."""

    __slots__ = ()


class _EscapingFormatter(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Html):
            return value
        if value is None:
            return ""
        if not isinstance(value, str) and isinstance(value, Iterable):
            return join(value)
        return escape(format(value, format_spec))


_formatter = _EscapingFormatter()


def html(template: str, /, **values: Any) -> Html:
    """Fills a template; values are escaped, lists are joined, and None is nothing.

    >>> html("<p>{text}</p>", text="1 < 2")
    '<p>1 &lt; 2</p>'
    """
    return Html(_formatter.vformat(template, (), values))


def join(parts: Iterable[Any]) -> Html:
    """Joins parts; what is not HTML is escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts))
