"""Writes the response to a refused call: status, content type, body.

    refuse: {status: 403, body: "...", type: text/plain}     that
    refuse: {redirect: /slow-down}                           302 and a Location, or another status from 300 to 399
    nothing                                                  429, and a problem (RFC 9457) or a sentence

A browser gets a page, a program a problem, which names the rules that refused, and a client that accepts only text
a line of it. A client prefers JSON if it names application/json or application/problem+json in Accept, and does
not prefer text/html: by q, or if q is the same, by naming text/html first. Of the others, one that names text/html
is a browser, and one that names text/plain or text/* gets text. A wildcard, as curl's */*, or no Accept at all is
that of a program. A service that cannot decide answers 503 in the same three ways.

nginx answers the same (refusal_body.lua) to clients that name JSON; to all others it sends its error page.
headers.py writes the fields that describe the decision, with Retry-After.

Laws (tests/http/test_refusal_body.py):
  - a rule's own body, and a redirect, are answered whatever the client accepts;
  - a status that is no error has no body, nor has 444, at which nginx closes the connection;
  - no value in a rule can end a header field, however the rule was made;
  - where nginx answers with a problem, it is the same byte for byte, unless a rule refused without its limit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from headgate.algorithms.decision import AdaptiveOutcome
from headgate.http.headers import Fields, retry_after
from headgate.rules.attributes import ascii_lower

if TYPE_CHECKING:
    from headgate.enforcement.rule_decision import RuleDecision
    from headgate.rules.rule import Refusal

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types"
QUOTA_EXCEEDED = f"{PROBLEM_TYPES}#quota-exceeded"
REDUCED_CAPACITY = f"{PROBLEM_TYPES}#temporary-reduced-capacity"

PROBLEM, PLAIN = "application/problem+json", "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

# Titles of problems: the reason phrases of RFC 9110. (Those of Python differ from one version to the next.)
REASONS = {
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    412: "Precondition Failed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}

_QUOTA_EXCEEDED_DETAIL = (
    "A quota of this service is used up. Retry-After says how many seconds to wait, if waiting helps."
)
_UNDECIDED_DETAIL = "This service cannot decide about requests at the moment."
_OVERLOADED_DETAIL = "This service is working on as many requests as it can."
_TEXTS = frozenset({"text/html", "text/plain", "text/*"})
_ANY_JSON = frozenset({"*/*", "application/*", "application/json", PROBLEM})
_NGINX_CLOSE = 444
_MAX_CACHED_CHARS = 256  # longer Accept fields are not cached

_media_range = re.compile(r"([^,; \t]+)([^,]*)")
_quality = re.compile(r";[ \t]*q=([0-9.]+)")
_media_type = re.compile(r"[!-~]+/[!-~]+[ -~]*")
_special = re.compile(r'[\x00-\x1f\x7f"\\]')


class RefusalResponse(NamedTuple):
    """A response without the header fields that describe the decision.

    >>> undecided_response(None).status
    503
    """

    status: int
    headers: Fields
    body: bytes


def refusal_response(decision: RuleDecision, accept: str | None) -> RefusalResponse:
    """Returns the response to a refused call.

    >>> decision = Limiter.from_rules(RULES, clock=ManualClock()).check({"user": "ann"}, cost=3)
    >>> refusal_response(decision, "application/json").body
    b'{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",...}'
    """
    refusal = decision.refusal
    if refusal is None:
        raise ValueError("The call was not refused by a rule: there is nothing to answer.")
    wait = retry_after(decision)
    reason = decision.why if wait is None else None
    overloaded = isinstance(decision.described_decision.outcome, AdaptiveOutcome)
    return configured_response(refusal, violated_rules(decision), accept, wait, reason, overloaded)


def violated_rules(decision: RuleDecision) -> list[str]:
    """Returns the names of the rules that refused, each once, in the order of the rulebook.

    >>> decision = Limiter.from_rules(RULES, clock=ManualClock()).check({"user": "ann"}, cost=3)
    >>> violated_rules(decision)
    ['login']
    """
    return list(
        dict.fromkeys(
            part.rule for part in decision.counter_decisions if not part.allowed and part.rule is not None
        )
    )


def configured_response(
    refusal: Refusal,
    names: Sequence[str],
    accept: str | None,
    wait: int | None = None,
    reason: str | None = None,
    overloaded: bool = False,
) -> RefusalResponse:
    """Returns the response that a rule's refusal configures.

    ``names``: of all rules that refused; ``wait``: whole seconds, if a wait helps; ``reason``: why a rule refused
    without its limit, such as "user is missing"; ``overloaded``: an adaptive limit refused, and no quota.

    >>> from headgate.rules.rule import Refusal
    >>> configured_response(Refusal(), ["login"], "text/plain", wait=30).body
    b'Too many requests. Try again in 30 seconds.\\n'
    """
    status = refusal.status
    if refusal.redirect is not None:
        return RefusalResponse(
            status, [("Location", quote(refusal.redirect, safe=_PRINTABLE, errors="replace"))], b""
        )
    if refusal.body is not None:
        kind = refusal.type if refusal.type and _media_type.fullmatch(refusal.type) else PLAIN
        return RefusalResponse(status, [("Content-Type", kind)], refusal.body.encode("utf-8", "replace"))
    if status < 400 or status == _NGINX_CLOSE:
        return RefusalResponse(status, [], b"")
    refused = None if reason is None else f"The request was refused, because {reason}."
    if overloaded and _gets_problem(accept):
        return _problem(REDUCED_CAPACITY, REASONS[503], f"{_OVERLOADED_DETAIL} Try again later.", status, names)
    if overloaded:
        return _sentence(status, f"{_OVERLOADED_DETAIL}{_retry_hint(wait)}", accept)
    if _gets_problem(accept):
        return _problem(QUOTA_EXCEEDED, REASONS[429], refused or _QUOTA_EXCEEDED_DETAIL, status, names)
    return _sentence(status, refused or f"Too many requests.{_retry_hint(wait)}", accept)


def undecided_response(accept: str | None, names: Sequence[str] = (), wait: int | None = None) -> RefusalResponse:
    """Returns the response to a call that could not be decided; ``names``: the rules that refuse it then.

    ``wait``: whole seconds, for Retry-After.

    >>> undecided_response("text/plain").body
    b'This service cannot decide about requests at the moment.\\n'
    """
    if _gets_problem(accept):
        response = _problem(REDUCED_CAPACITY, REASONS[503], f"{_UNDECIDED_DETAIL} Try again later.", 503, names)
    else:
        response = _sentence(503, f"{_UNDECIDED_DETAIL}{_retry_hint(wait)}", accept)
    fields = [] if wait is None else [("Retry-After", str(wait))]
    return response._replace(headers=[*response.headers, *fields])


def wants_json(accept: str | None) -> bool:
    """Returns whether a client prefers JSON to HTML, from its Accept field.

    >>> wants_json("application/json, text/html;q=0.9"), wants_json("*/*"), wants_json(None)
    (True, False, False)
    """
    if not accept:
        return False
    return _cached_wants_json(accept) if len(accept) <= _MAX_CACHED_CHARS else _wants_json(accept)


def _wants_json(accept: str) -> bool:
    qualities: dict[str, float] = {}
    positions: dict[str, int] = {}
    for position, (kind, parameters) in enumerate(_media_range.findall(ascii_lower(accept))):
        qualities[kind] = max(qualities.get(kind, 0.0), _quality_of(parameters))
        positions.setdefault(kind, position)
    json, problem = qualities.get("application/json", 0.0), qualities.get(PROBLEM, 0.0)
    json_quality = max(json, problem)
    html = next((qualities[kind] for kind in ("text/html", "text/*", "*/*") if kind in qualities), 0.0)
    if json_quality != html or json_quality == 0:
        return json_quality > html
    json_position = positions["application/json" if json == json_quality else PROBLEM]
    return "text/html" not in positions or json_position < positions["text/html"]


_cached_wants_json = lru_cache(maxsize=1024)(_wants_json)


def wants_html(accept: str | None) -> bool:
    """Returns whether a client that does not prefer JSON accepts a page: it names text/html, as browsers do.

    >>> wants_html("text/html,application/xhtml+xml,*/*;q=0.8"), wants_html("*/*")
    (True, False)
    """
    return bool(accept) and "text/html" in _accepted(accept or "")


def _gets_problem(accept: str | None) -> bool:
    """Returns whether a client gets a problem: it prefers JSON, or it is a program that names no text."""
    if not accept or not accept.strip() or wants_json(accept):
        return True
    accepted = _accepted(accept)
    return accepted.isdisjoint(_TEXTS) and not accepted.isdisjoint(_ANY_JSON)


def _accepted(accept: str) -> set[str]:
    """Returns the media ranges that an Accept field names, without those it refuses."""
    ranges = _media_range.findall(ascii_lower(accept))
    return {kind for kind, parameters in ranges if _quality_of(parameters) > 0}


def _quality_of(parameters: str) -> float:
    match = _quality.search(parameters)
    try:
        return float(match[1]) if match else 1.0
    except ValueError:  # two points, or nothing but one
        return 1.0


def _problem(kind: str, title: str, detail: str, status: int, names: Sequence[str]) -> RefusalResponse:
    """Returns a problem. Its title belongs to its type (RFC 9457, 3.1.4), whatever the rule's status is."""
    listed = ",".join(f'"{_special.sub(_escaped, name)}"' for name in names)
    detail = _special.sub(_escaped, detail)
    body = (
        f'{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}",'
        f'"violated-policies":[{listed}]}}'
    )
    return RefusalResponse(status, [("Content-Type", PROBLEM)], body.encode("utf-8", "replace"))


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


def _sentence(status: int, sentence: str, accept: str | None) -> RefusalResponse:
    """Returns a sentence as a page for a browser, and as plain text for everybody else."""
    if not wants_html(accept):
        return RefusalResponse(status, [("Content-Type", PLAIN)], f"{sentence}\n".encode())
    title = REASONS.get(status, REASONS[429])
    page = _PAGE.format(title=title, sentence=escape(sentence, quote=False))
    return RefusalResponse(status, [("Content-Type", HTML)], page.encode())


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ font: 1rem/1.5 sans-serif; max-width: 36rem; margin: 15vh auto; padding: 0 1rem }}</style>
</head>
<body>
<h1>{title}</h1>
<p>{sentence}</p>
</body>
</html>
"""


def _retry_hint(wait: int | None) -> str:
    return "" if wait is None else f" Try again in {wait} second{'' if wait == 1 else 's'}."


_PRINTABLE = "".join(map(chr, range(ord("!"), ord("~") + 1)))
