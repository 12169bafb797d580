"""Logs every change that an operator makes in one line: who, what, from where; the log adds the time.

    2026-11-16T12:00:00.123Z info rules published author=ann remote=127.0.0.1:40312 before=3 after=4 note="more"

The author is the value of X-Headgate-Author: the token only permits changes. It is one short
line; characters beyond ASCII are percent-encoded there. A value that could be read as two, or as the end of a
line, is quoted.
"""

from __future__ import annotations

import json
import logging
import re
from urllib.parse import unquote

from headgate.errors import CorruptState, EngineUnavailable, InvalidRule
from headgate.operations.audit_trail import AuditTrail
from headgate.rules.distribution.rulebook_version import MAX_AUTHOR_LENGTH, one_line

AUTHOR_HEADER = "x-headgate-author"
_log = logging.getLogger("headgate.admin")
_unquoted = re.compile(r"[\w.,:;|=@/#~+*%()\[\]-]+", re.ASCII)


def author_of(field: str | None) -> str:
    """Returns the author of a change; raises InvalidRule if the field is missing."""
    if not field or not field.strip():
        raise InvalidRule(
            "The author is missing. Name the author of the change in the field X-Headgate-Author, with non-ASCII "
            "characters percent-encoded."
        )
    return one_line("author", unquote(field, errors="replace"), MAX_AUTHOR_LENGTH)


def log_change(event: str, author: str, remote: str, **details: object) -> None:
    """Logs a change."""
    fields = {"author": author, "remote": remote, **details}
    _log.info(event, extra={name: _quote(value) for name, value in fields.items() if value not in (None, "")})


class ChangeLog:
    """Records changes: a line in the log, and an entry in the audit trail."""

    def __init__(self, trail: AuditTrail) -> None:
        self.trail: AuditTrail = trail

    async def record(
        self, event: str, author: str, remote: str, reason: str = "", **details: str | int | float | None
    ) -> None:
        """Records a change that was made. If the trail cannot be written, the log has it all the same."""
        if reason:
            details["reason"] = reason
        log_change(event, author, remote, **details)
        try:
            await self.trail.add(event, author, remote, details)
        except (EngineUnavailable, CorruptState) as error:
            _log.error("a change is in this log only; the audit trail cannot be written: %s", error)


def log_uncertain_change(verb: str, author: str, remote: str, path: dict[str, str]) -> None:
    """Logs a change that was sent to an engine which gave no answer: it may have been made."""
    fields = {"verb": verb, "author": author, "remote": remote, **path}
    _log.warning("a change may have been made", extra={name: _quote(value) for name, value in fields.items()})


def log_wrong_token(remote: str) -> None:
    _log.warning("a wrong token, or none", extra={"remote": _quote(remote)})


def log_failure(verb: str, error: Exception) -> None:
    _log.error("%s could not be answered", verb, exc_info=error)


def _quote(value: object) -> object:
    if not isinstance(value, str) or _unquoted.fullmatch(value):
        return value
    return json.dumps(value)
