"""PageRequest: an authorized request for a page, as its handler gets it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from headgate.rules.distribution.rulebook_version import one_line
from headgate.service.asgi import HttpError, Request
from headgate.service.check_schema import MAX_NAME_CHARS, MAX_VALUE_CHARS
from headgate.service.dashboard.operator_actions import Actor
from headgate.service.dashboard.page_layout import View
from headgate.service.dashboard.sessions import Session

MAX_REASON_CHARS: Final = 300
MAX_CHARS: Final = {"rule": MAX_NAME_CHARS, "name": MAX_NAME_CHARS, "key": MAX_VALUE_CHARS, "id": 60, "find": 200}
_control_characters = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class PageRequest(NamedTuple):
    """An authorized request: its user, its path, its query and its form."""

    view: View
    session: Session
    path: dict[str, str]
    query: dict[str, str]
    form: dict[str, str]
    remote: str
    request: Request
    is_secure: bool = False  # the browser came by TLS

    @property
    def actor(self) -> Actor:
        """Returns who acts, and the reason that the form gives; raises InvalidRule if that is no short line."""
        reason = one_line("reason", self.form.get("reason", ""), MAX_REASON_CHARS)
        return Actor(self.session.user, self.remote, reason)

    def needed(self, name: str) -> str:
        """Returns a field of the form or the query; raises HttpError if it is missing or too long."""
        value = self.form.get(name) or self.query.get(name)
        if not value:
            raise HttpError(400, f"The field {name} is missing.")
        return self._bounded(name, value)

    def optional(self, name: str) -> str:
        """Returns a field of the query, empty if it is missing; raises HttpError if it is too long."""
        return self._bounded(name, self.query.get(name, "").strip())

    def key_to_change(self) -> str:
        """Returns the key that the form names; raises HttpError if it has invisible control characters."""
        key = self.needed("key")
        if control := _control_characters.search(key):
            raise HttpError(
                400, f"The key holds the control character {control[0]!r}. Change such a key by the admin API."
            )
        return key

    def _bounded(self, name: str, value: str) -> str:
        longest = MAX_CHARS.get(name)
        if longest is not None and len(value) > longest:
            raise HttpError(
                400, f"The field {name} has {len(value):,} characters; at most {longest:,} are possible."
            )
        return value
