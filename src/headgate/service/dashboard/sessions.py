"""Authenticates users of the dashboard: logins, roles, signed sessions, and tokens against forged requests.

A login shows a token and says a name, which the audit trail gets. A session is a signed cookie: any worker can
read it, and it outlives a restart if the token does. It ends after SESSION_S, or when the token changes.

Guessing is limited by headgate itself (service/token_guesses.py).

Laws (tests/dashboard/test_access.py): a cookie that was changed in any character is worth nothing; a cookie's
role is that of its token; a form that was not made for this session changes nothing; the token of a form is no
cookie.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, Literal, NamedTuple

from headgate.rules.distribution.rulebook_version import MAX_AUTHOR_LENGTH, one_line
from headgate.service.token_guesses import TokenGuesses

Role = Literal["viewer", "operator"]
VIEWER: Final = "viewer"
OPERATOR: Final = "operator"

COOKIE: Final = "headgate_session"
SESSION_S: Final = 12 * 3600
_MAX_COOKIE_CHARS: Final = 1000


class Session(NamedTuple):
    """A user who has logged in, by a token or at a trusted proxy."""

    user: str
    role: Role
    id: str

    @property
    def is_operator(self) -> bool:
        return self.role == OPERATOR


class Sessions:
    """Checks logins, and signs and reads sessions."""

    def __init__(self, operator_token: str, viewer_token: str, guesses: TokenGuesses) -> None:
        tokens: tuple[tuple[Role, str], ...] = ((OPERATOR, operator_token), (VIEWER, viewer_token))
        self._tokens = [(role, token.encode()) for role, token in tokens if token]
        self._keys = {role: hmac.digest(token, b"headgate dashboard", "sha256") for role, token in self._tokens}
        self._guesses = guesses

    def log_in(self, token: str, user: str, address: str) -> Session | None:
        """Returns a new session; None for a wrong token. Raises TooManyGuesses."""
        shown = token.strip().encode("utf-8", "replace")
        roles = [role for role, expected in self._tokens if hmac.compare_digest(shown, expected)]
        self._guesses.count(address, roles[0] if roles else None)
        if not roles:
            return None
        return Session(user_name(user), roles[0], secrets.token_urlsafe(12))

    def cookie(self, session: Session) -> str:
        """Returns a session as the value of its cookie."""
        fields = [session.user, session.role, session.id, int(time.time()) + SESSION_S]
        packed = urlsafe_b64encode(json.dumps(fields).encode()).decode()
        return f"{packed}.{self._sign(session.role, f'session {packed}')}"

    def read(self, cookie: str | None) -> Session | None:
        """Returns the session of a cookie; None if it is not valid, or not any more."""
        if not cookie or len(cookie) > _MAX_COOKIE_CHARS:
            return None
        packed, _, signature = cookie.partition(".")
        for role in self._keys:
            if hmac.compare_digest(signature.encode(), self._sign(role, f"session {packed}").encode()):
                return _unpack(role, packed)
        return None

    def form_token(self, session: Session) -> str:
        """Returns the token that every form of this session holds."""
        return self._sign(OPERATOR, f"form {session.user} {session.role} {session.id}")

    def is_form_token(self, session: Session, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.form_token(session).encode())

    def _sign(self, role: Role, text: str) -> str:
        digest = hmac.digest(self._keys[role], text.encode("utf-8", "replace"), "sha256")
        return urlsafe_b64encode(digest).decode().rstrip("=")


def _unpack(role: Role, packed: str) -> Session | None:
    """Returns the session that a signed cookie holds; None if it has ended, or another release wrote it."""
    try:
        user, signed_role, identity, expires_s = json.loads(urlsafe_b64decode(packed))
        return Session(str(user), role, str(identity)) if signed_role == role and expires_s > time.time() else None
    except (ValueError, TypeError):
        return None


def user_name(text: str) -> str:
    """Returns a user's name, stripped; raises InvalidRule if it is empty, too long, or has control characters."""
    return one_line("author", text, MAX_AUTHOR_LENGTH)
