"""What can go wrong between here and the server, as sentences to whoever can fix it.

Trouble
├── Lost       the connection failed; nothing is known of the question
├── Late       no reply in time
└── Said       the server answered with an error
    └── Forgot     ... because it does not know the script any more
"""

from __future__ import annotations

import re

from headgate.errors import EngineUnavailable


class Trouble(Exception):
    """A question that got no answer."""


class Lost(Trouble):
    """The connection failed."""


class Late(Trouble):
    """No reply in time."""


class Said(Trouble):
    """The server's own words for no."""


class Forgot(Said):
    """The server does not know the script: it was restarted, or its scripts were flushed."""


def said(text: str) -> Said:
    """An error reply, as an exception."""
    return Forgot(text) if text.startswith("NOSCRIPT") else Said(text)


def unavailable(where: str, trouble: Trouble) -> EngineUnavailable:
    """The engine's failure, told; the cause is chained by the caller."""
    return EngineUnavailable(f"Redis at {where} gave no decision: {_why(trouble)}")


_command = re.compile(r"to run the '([^']+)'|run the '?([\w|]+)'? command", re.I)


def _why(trouble: Trouble) -> str:
    text = str(trouble).strip()
    if isinstance(trouble, Late):
        return f"no answer within the timeout ({text})."
    if re.search(r"WRONGPASS|NOAUTH|invalid username-password|Authentication", text):
        return f"it refused the user or the password ({text}). Correct them in the engine's URL."
    if isinstance(trouble, Lost):
        return f"the connection failed ({text})."
    if "NOPERM" in text or "ACL failure" in text or "no permission" in text:
        return _permission(text)
    if text.startswith("READONLY"):
        return "it is a replica and takes no writes. Name the master in the engine's URL."
    if "WRONGTYPE" in text:
        return f"a key under our prefix holds something that is not ours ({text}). Choose another prefix."
    return f"it answered with an error ({text})."


def _permission(text: str) -> str:
    if re.search(r"access (one of the keys|the key|a key)", text):
        return f"its user may not touch our keys ({text}). Grant them: ACL SETUSER <user> ~hg1:*"
    found = _command.search(text)
    missing = (found[1] or found[2]).lower() if found else "evalsha"
    return f"its user lacks the right to run {missing} ({text}). Grant it: ACL SETUSER <user> +{missing}"
