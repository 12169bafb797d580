"""Every change that an operator makes is one line in the log: who, what, from where; the log says when.

    2026-11-16T12:00:00.123Z info rules published author=ann remote=127.0.0.1:40312 before=3 after=4 note="more"

Who is what X-Headgate-Author says: the token only says that somebody may. It is one short line; what is not ASCII
is written percent-encoded there. A value that could be taken for two, or for the end of a line, is quoted.
"""

from __future__ import annotations

import json
import logging
import re
from urllib.parse import unquote

from headgate.errors import InvalidRule
from headgate.rules.distribution.version import LONGEST_AUTHOR, one_line

AUTHOR_HEADER = "x-headgate-author"
_log = logging.getLogger("headgate.admin")
_plain = re.compile(r"[\w.,:;|=@/#~+*%()\[\]-]+", re.ASCII)


def author_of(field: str | None) -> str:
    """Who makes the change; InvalidRule if that is not said."""
    if not field or not field.strip():
        raise InvalidRule(
            "Who makes this change? Say it in the field X-Headgate-Author; what is not ASCII is percent-encoded."
        )
    return one_line("author", unquote(field, errors="replace"), LONGEST_AUTHOR)


def log_change(what: str, author: str, remote: str, **more: object) -> None:
    """Note a change."""
    told = {"author": author, "remote": remote, **more}
    _log.info(what, extra={name: _shown(value) for name, value in told.items() if value not in (None, "")})


def log_uncertain_change(verb: str, author: str, remote: str, path: dict[str, str]) -> None:
    """Note a change that was asked of an engine which gave no answer: it may have been made."""
    told = {"verb": verb, "author": author, "remote": remote, **path}
    _log.warning("a change may have been made", extra={name: _shown(value) for name, value in told.items()})


def log_wrong_token(remote: str) -> None:
    _log.warning("a wrong token, or none", extra={"remote": _shown(remote)})


def log_failure(verb: str, error: Exception) -> None:
    _log.error("%s could not be answered", verb, exc_info=error)


def _shown(value: object) -> object:
    if not isinstance(value, str) or _plain.fullmatch(value):
        return value
    return json.dumps(value)
