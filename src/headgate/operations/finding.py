"""Finding: one result of a check of `headgate doctor`, with the line to change."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

Level = Literal["ok", "warning", "error"]

OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"


class Finding(NamedTuple):
    """The result of one check.

    check     what was checked, in a word or two
    level     ok; warning: it works, and something is wrong or unknown; error: limits do not hold or nothing works
    message   a sentence
    change    the line to write, or to run
    where     the file and line, server or setting that the change is for
    """

    check: str
    level: Level
    message: str
    change: str | None = None
    where: str | None = None

    def document(self) -> dict[str, Any]:
        """Returns the finding as JSON data."""
        return self._asdict()
