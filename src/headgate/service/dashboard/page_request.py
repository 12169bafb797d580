"""PageRequest: an authorized request for a page, as its handler gets it."""

from __future__ import annotations

from typing import NamedTuple

from headgate.service.asgi import HttpError, Request
from headgate.service.dashboard.operator_actions import Actor
from headgate.service.dashboard.page_layout import View
from headgate.service.dashboard.sessions import Session


class PageRequest(NamedTuple):
    """A page request: the user, the target, and the fields of a form."""

    view: View
    session: Session
    path: dict[str, str]
    query: dict[str, str]
    form: dict[str, str]
    remote: str
    request: Request

    @property
    def actor(self) -> Actor:
        """Returns who acts, and the reason that the form gives."""
        return Actor(self.session.user, self.remote, self.form.get("reason", "").strip())

    def needed(self, name: str) -> str:
        """Returns a field of the form or the query; raises HttpError if it is missing."""
        value = self.form.get(name) or self.query.get(name)
        if not value:
            raise HttpError(400, f"The field {name} is missing.")
        return value
