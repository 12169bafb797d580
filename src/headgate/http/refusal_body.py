"""What a refusal answers: status, content type, body.

    refuse: {status: 403, body: "...", type: text/plain}     that
    refuse: {redirect: /slow-down}                           302 and a Location, or another status from 300 to 399
    nothing                                                  429, and a problem (RFC 9457) or a sentence

A client that would rather have JSON gets a problem, which names the rules that refused; any other client gets a
line of plain text. It would rather have JSON if it names application/json or application/problem+json in Accept,
and does not like text/html better: by q, or if q is the same, by naming text/html first. A wildcard names nothing:
curl's */* gets the sentence. A service that cannot decide answers 503 in the same two ways.

nginx answers the same (refusal.lua), but for the sentence: it has pages of its own. Outcome in header fields, with
Retry-After, are headers.py.

Laws (tests/http/test_refusal_body.py):
  - a rule's own body, and a redirect, are answered whatever the client accepts;
  - nothing is said of a status that is no error, nor of 444, at which nginx answers nothing;
  - nothing that a rule says can end a header field, however the rule was made;
  - for every rule and every Accept the problem is, byte for byte, what nginx answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from headgate.http.headers import Fields, retry_after
from headgate.rules.attributes import lower

if TYPE_CHECKING:
    from headgate.enforcement.rule_decision import RuleDecision
    from headgate.rules.rule import Refusal

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types"
QUOTA_EXCEEDED = f"{PROBLEM_TYPES}#quota-exceeded"
REDUCED_CAPACITY = f"{PROBLEM_TYPES}#temporary-reduced-capacity"

PROBLEM, PLAIN = "application/problem+json", "text/plain; charset=utf-8"

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

_USED_UP = "A quota of this service is used up. Retry-After says how many seconds to wait, if waiting helps."
_CANNOT_DECIDE = "This service cannot decide about requests at the moment."
_SILENT = 444
_SHORT = 256  # Accept fields that are remembered

_range = re.compile(r"([^,; \t]+)([^,]*)")
_quality = re.compile(r";[ \t]*q=([0-9.]+)")
_type = re.compile(r"[!-~]+/[!-~]+[ -~]*")
_special = re.compile(r'[\x00-\x1f\x7f"\\]')


class Answer(NamedTuple):
    """A response, but for the facts of the decision.

    >>> undecided(None).status
    503
    """

    status: int
    headers: Fields
    body: bytes


def refused(decision: RuleDecision, accept: str | None) -> Answer:
    """Makes the response to a refused call.

    >>> decision = Limiter.from_rules(RULES, clock=ManualClock()).check({"user": "ann"}, cost=3)
    >>> refused(decision, "application/json").body
    b'{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",...}'
    """
    refusal = decision.refusal
    if refusal is None:
        raise ValueError("The call was not refused by a rule: there is nothing to answer.")
    return answer(refusal, violated(decision), accept, retry_after(decision))


def violated(decision: RuleDecision) -> list[str]:
    """The names of the rules that refused, each once, in the order of the book.

    >>> decision = Limiter.from_rules(RULES, clock=ManualClock()).check({"user": "ann"}, cost=3)
    >>> violated(decision)
    ['login']
    """
    return list(dict.fromkeys(part.rule for part in decision.parts if not part.allowed and part.rule is not None))


def answer(refusal: Refusal, names: Sequence[str], accept: str | None, wait: int | None = None) -> Answer:
    """Makes the response that a rule gives.

    ``names``: of all rules that refused; ``wait``: whole seconds, if a wait helps.

    >>> from headgate.rules.rule import Refusal
    >>> answer(Refusal(), ["login"], None, wait=30).body
    b'Too many requests. Try again in 30 seconds.\\n'
    """
    status = refusal.status
    if refusal.redirect is not None:
        return Answer(status, [("Location", quote(refusal.redirect, safe=_PRINTABLE, errors="replace"))], b"")
    if refusal.body is not None:
        kind = refusal.type if refusal.type and _type.fullmatch(refusal.type) else PLAIN
        return Answer(status, [("Content-Type", kind)], refusal.body.encode("utf-8", "replace"))
    if status < 400 or status == _SILENT:
        return Answer(status, [], b"")
    if wants_json(accept):
        return _problem(QUOTA_EXCEEDED, REASONS[429], _USED_UP, status, names)
    return _sentence(status, f"Too many requests.{_again(wait)}")


def undecided(accept: str | None, names: Sequence[str] = (), wait: int | None = None) -> Answer:
    """Makes the response where nobody can decide, and the rules of these names do not let calls pass then.

    >>> undecided("text/html").body
    b'This service cannot decide about requests at the moment.\\n'
    """
    if wants_json(accept):
        return _problem(REDUCED_CAPACITY, REASONS[503], f"{_CANNOT_DECIDE} Try again later.", 503, names)
    return _sentence(503, f"{_CANNOT_DECIDE}{_again(wait)}")


def wants_json(accept: str | None) -> bool:
    """Whether a client would rather have JSON than a page, from its Accept field.

    >>> wants_json("application/json, text/html;q=0.9"), wants_json("*/*"), wants_json(None)
    (True, False, False)
    """
    if not accept:
        return False
    return _short_wants_json(accept) if len(accept) <= _SHORT else _wants_json(accept)


def _wants_json(accept: str) -> bool:
    likes: dict[str, float] = {}
    places: dict[str, int] = {}
    for place, (kind, parameters) in enumerate(_range.findall(lower(accept))):
        likes[kind] = max(likes.get(kind, 0.0), _liked(parameters))
        places.setdefault(kind, place)
    json, problem = likes.get("application/json", 0.0), likes.get(PROBLEM, 0.0)
    best = max(json, problem)
    page = next((likes[kind] for kind in ("text/html", "text/*", "*/*") if kind in likes), 0.0)
    if best != page or best == 0:
        return best > page
    named = places["application/json" if json == best else PROBLEM]
    return "text/html" not in places or named < places["text/html"]


_short_wants_json = lru_cache(maxsize=1024)(_wants_json)


def _liked(parameters: str) -> float:
    said = _quality.search(parameters)
    try:
        return float(said[1]) if said else 1.0
    except ValueError:  # two points, or nothing but one
        return 1.0


def _problem(kind: str, title: str, detail: str, status: int, names: Sequence[str]) -> Answer:
    """A problem. Its title goes with its type (RFC 9457, 3.1.4), whatever status the rule says."""
    listed = ",".join(f'"{_special.sub(_escaped, name)}"' for name in names)
    body = (
        f'{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}",'
        f'"violated-policies":[{listed}]}}'
    )
    return Answer(status, [("Content-Type", PROBLEM)], body.encode("utf-8", "replace"))


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


def _sentence(status: int, words: str) -> Answer:
    return Answer(status, [("Content-Type", PLAIN)], f"{words}\n".encode())


def _again(wait: int | None) -> str:
    return "" if wait is None else f" Try again in {wait} second{'' if wait == 1 else 's'}."


_PRINTABLE = "".join(map(chr, range(ord("!"), ord("~") + 1)))
