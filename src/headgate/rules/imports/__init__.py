"""Imports: translates the configurations of other rate limiters into rulebooks.

    envoy     the YAML of envoyproxy/ratelimit
    spring    an application.yaml with routes of Spring Cloud Gateway
    nginx     limit_req and limit_conn of an nginx configuration
    limits    rate strings of limits, flask-limiter and slowapi

    translation = translate(text)
    translation.document     a rulebook, to be loaded (load.from_mapping) or written down
    translation.notes        what has no equivalent, or means something else here, each with its line

Law: nothing that limits is dropped silently. What has no equivalent becomes a note that says what was done
instead, and a text that cannot be read is an InvalidRule with its line.

Modules:
    envoy_ratelimit      translates envoyproxy/ratelimit
    spring_gateway       translates Spring Cloud Gateway
    spring_predicates    translates Spring's predicates into conditions
    nginx_limit_req      translates limit_req and limit_conn
    nginx_conf_parser    parses an nginx configuration
    nginx_locations      translates locations into conditions
    nginx_variables      translates variables of a zone's key into dimensions
    nginx_allow_lists    translates geo and map allow-lists into except
    rate_strings         translates rate strings of limits, flask-limiter and slowapi
    rulebook_draft       a rulebook while it is being translated, and its notes
    yaml_tree            reads YAML of other programs, with lines
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from headgate.errors import InvalidRule
from headgate.rules.imports import envoy_ratelimit, nginx_limit_req, rate_strings, spring_gateway
from headgate.rules.imports.rulebook_draft import Translation, TranslationNote

__all__ = ["KINDS", "Translation", "TranslationNote", "detect_kind", "located", "looks_like", "translate"]

_TRANSLATORS: dict[str, Callable[..., Translation]] = {
    "envoy": envoy_ratelimit.translate,
    "spring": spring_gateway.translate,
    "nginx": nginx_limit_req.translate,
    "limits": rate_strings.translate,
}
KINDS = tuple(_TRANSLATORS)

_SIGNS = {
    "nginx": [r"^[^#\n]*\blimit_(?:req|conn)(?:_zone)?\s[^;]*;"],
    "spring": [r"RequestRateLimiter|redis-rate-limiter|^spring\s*[.:]"],
    "envoy": [r"""^[\s{]*["']?domain["']?\s*:""", r"""^[\s{]*["']?descriptors["']?\s*:"""],
}
_RULEBOOK_SIGN = r"""^[\s{]*["']?rules["']?\s*:"""  # a headgate rulebook, whose conditions may name a domain

_OPTIONS = {"envoy": "domain", "limits": "strategy"}

_line_prefix = re.compile(r"line (\d+): ")


class WrongOption(InvalidRule):
    """An option that is for another kind of file."""


def translate(
    text: str, kind: str | None = None, name: str | None = None, *, source: str | None = None, **options: Any
) -> Translation:
    """Translates a text into a rulebook called `name`. Its kind is detected by default; errors name `source`.

    Options: for envoy `domain=True` (rules are for calls whose attribute `domain` is that of this file), for
    limits `strategy="moving-window"`.
    """
    if source is not None:
        try:
            return translate(text, kind, name, **options)
        except WrongOption:
            raise
        except InvalidRule as error:
            raise InvalidRule(with_location(str(error), source)) from None
    chosen_kind = detect_kind(text) if kind is None else kind
    if chosen_kind not in _TRANSLATORS:
        raise InvalidRule(f'"{chosen_kind}" cannot be imported. Known are {", ".join(KINDS)}.')
    for option in options:
        if option != _OPTIONS.get(chosen_kind):
            kinds = [option_kind for option_kind, kind_option in _OPTIONS.items() if kind_option == option]
            why = (
                f"is for files of {kinds[0]}; this one is of {chosen_kind}"
                if kinds
                else "is no option of an import"
            )
            raise WrongOption(f"--{option} (in a program {option}=) {why}.")
    return _TRANSLATORS[chosen_kind](text, name, **options)


def with_location(sentence: str, source: str) -> str:
    """Puts the file before a message: FILE:3: if the message starts with its line."""
    match = _line_prefix.match(sentence)
    return f"{source}:{match[1]}: {sentence[match.end() :]}" if match else f"{source}: {sentence}"


def looks_like(kind: str, text: str) -> bool:
    """Returns whether a text has the signs of that kind: nginx, spring or envoy."""
    signs = [bool(re.search(sign, text, re.M)) for sign in _SIGNS[kind]]
    if kind == "envoy" and not re.search(_RULEBOOK_SIGN, text, re.M):
        return any(signs)  # the other key may be misspelled
    return all(signs)


def detect_kind(text: str) -> str:
    """Returns the kind of a configuration text; raises InvalidRule if it is not recognized."""
    for kind in _SIGNS:
        if looks_like(kind, text):
            return kind
    if rate_strings.looks_like(text):
        return "limits"
    raise InvalidRule(
        "This kind of file is not recognized. Name it with --kind (in a program kind=): envoy (domain and "
        "descriptors), spring (routes with a RequestRateLimiter), nginx (limit_req or limit_conn), or limits "
        '(such as "5/second;100/hour").'
    )
