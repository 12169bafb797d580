"""Refuses settings that do not exist, and names the one that was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from headgate.errors import InvalidSetting


def reject_unknown(
    settings: Iterable[str], valid_names: Iterable[str], subject: str = "an application's limits"
) -> None:
    """Raises InvalidSetting for a setting whose name is not known."""
    names = sorted(valid_names)
    for name in settings:
        if name not in names:
            # key_func is nearer to key than its spelling says.
            similar = [each for each in names if name.startswith(f"{each}_")] or get_close_matches(name, names, 1)
            hint = f"Did you mean {similar[0]}=?" if similar else f"Known: {', '.join(names)}."
            raise InvalidSetting(f"{name}= is not a setting of {subject}. {hint}")
