"""Turns nginx's log_format and Apache's LogFormat strings into formats.

    $remote_addr [$time_local] "$request" $status $request_time
    %h %l %u %t "%r" %>s %b %D

A field ends where the text behind it begins: a blank, a quote, a bracket.
"""

from __future__ import annotations

import re

from headgate.errors import InvalidLog
from headgate.traffic.formats.log_format import NAMED_FORMATS, LogFormat, regex_format

_nginx_variable = re.compile(r"\$\{?([a-z0-9_]+)\}?")
_apache_directive = re.compile(r"%[0-9,!]*[<>]?(?:\{([^}]*)\})?(\^?[a-zA-Z]+?|%)(?![a-zA-Z])")
_APACHE = {
    "h": "remote_host",
    "a": "remote_addr",
    "u": "remote_user",
    "t": "time",
    "r": "request",
    "s": "status",
    "m": "method",
    "U": "path",
    "v": "vhost",
    "V": "vhost",
    "D": "duration_us",
    "T": "duration_s",
}


def parse_format(text: str) -> LogFormat:
    """Returns the format of a name (combined, common, envoy) or of a format string of nginx or Apache."""
    if text in NAMED_FORMATS:
        return NAMED_FORMATS[text]
    if "$" in text:
        return _compile(text, _nginx_variable, "nginx log", lambda match: match[1])
    if "%" in text:
        return _compile(text, _apache_directive, "Apache log", _apache_name)
    raise InvalidLog(
        f'"{text}" is not a format: write {", ".join(NAMED_FORMATS)}, a log_format of nginx such as '
        "'$remote_addr [$time_local] \"$request\" $status', or a LogFormat of Apache such as '%h %t \"%r\" %>s'."
    )


def _apache_name(match: re.Match[str]) -> str | None:
    argument, directive = match[1], match[2]
    if directive == "i" and argument:
        return f"http_{argument}"
    if directive == "t" and argument:
        return "time" if argument in ("sec", "msec", "usec") else None
    if directive == "T" and argument in ("ms", "us"):
        return f"duration_{argument}"
    return _APACHE.get(directive)


def _compile(text: str, field: re.Pattern[str], title: str, name_of: object) -> LogFormat:
    assert callable(name_of)
    names: list[str] = []
    parts: list[str] = []
    end = 0
    for match in field.finditer(text):
        parts.append(_literal(text[end : match.start()]))
        end = match.end()
        name = name_of(match)
        following = text[end : end + 1]
        bracketed = name == "time" and title == "Apache log" and not match[1]
        names.append(name or f"unnamed_{len(names)}")
        parts.append(r"\[([^\]]*)\]" if bracketed else _group(following))
    parts.append(_literal(text[end:].rstrip()))
    return regex_format(title, "".join(parts), names)


def _literal(text: str) -> str:
    return re.sub(r"(?:\\ |\s)+", r"\\s+", re.escape(text))


def _group(following: str) -> str:
    if following == '"':
        return r'([^"\\]*(?:\\.[^"\\]*)*)'
    if following in ("", "\n"):
        return r"(\S*)"
    return rf"([^{re.escape(following)}]*)"
