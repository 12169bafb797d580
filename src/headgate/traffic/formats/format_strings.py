"""Turns nginx's log_format and Apache's LogFormat strings into formats.

    $remote_addr [$time_local] "$request" $status $request_time
    %h %l %u %t "%r" %>s %b %D

The text may also be a whole directive, as it is in a configuration file. A field ends where the text after it
begins: a blank, a quote, a bracket. Numbers, times and nginx's lists of upstreams may contain blanks, or have
blanks around them. So each of them has a pattern of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from headgate.errors import InvalidLog
from headgate.traffic.formats.log_format import NAMED_FORMATS, LogFormat, regex_format

_nginx_variable = re.compile(r"\$\{?([a-z0-9_]+)\}?")
_apache_directive = re.compile(r"%[0-9,!]*[<>]?(?:\{([^}]*)\})?(\^?[a-zA-Z]+?|%)(?![a-zA-Z])")
_nginx_setting = re.compile(r"\s*log_format\s+\S+\s+(?:escape=\w+\s+)?(.*?);?\s*", re.DOTALL)
_apache_setting = re.compile(r"\s*LogFormat\s+(.*?)(?:\s+\w+)?\s*", re.DOTALL)
_quoted_part = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_escape = re.compile(r"""\\([\\"'t])""")
_APACHE = {
    "a": "remote_addr",
    "b": "bytes_sent",
    "B": "bytes_sent",
    "D": "duration_us",
    "h": "remote_host",
    "H": "protocol",
    "I": "bytes_received",
    "l": "logname",
    "m": "method",
    "O": "bytes_sent",
    "p": "port",
    "q": "query",
    "r": "request",
    "s": "status",
    "t": "time",
    "T": "duration_s",
    "u": "remote_user",
    "U": "path",
    "v": "vhost",
    "V": "vhost",
}
_NUMBERS = {
    *("bytes_sent", "body_bytes_sent", "bytes_received", "request_length", "request_time", "msec"),
    *("remote_port", "server_port", "port", "connection", "connection_requests", "duration_us", "duration_s"),
}
_TEXTS = {"request", "remote_user"}  # and headers: blanks may be in them


def parse_format(text: str) -> LogFormat:
    """Returns the format of a name (combined, common, envoy) or of a format string of nginx or Apache."""
    if text in NAMED_FORMATS:
        return NAMED_FORMATS[text]
    text = _string_of(text)
    if "$" in text:
        return _compile(text, _nginx_variable, "nginx log", lambda match: match[1])
    if "%" in text:
        return _compile(text, _apache_directive, "Apache log", _apache_name)
    raise InvalidLog(
        f'"{text}" is not a format: write {", ".join(NAMED_FORMATS)}, a log_format of nginx such as '
        "'$remote_addr [$time_local] \"$request\" $status', or a LogFormat of Apache such as '%h %t \"%r\" %>s'."
    )


def _string_of(text: str) -> str:
    """Returns the string of a whole directive, and what its escapes stand for."""
    setting = _nginx_setting.fullmatch(text) or _apache_setting.fullmatch(text)
    if setting:
        parts = [single or double for single, double in _quoted_part.findall(setting[1])]
        text = "".join(parts) or setting[1]
    return _escape.sub(lambda match: "\t" if match[1] == "t" else match[1], text)


def _apache_name(match: re.Match[str]) -> str | None:
    argument, directive = match[1], match[2]
    if directive == "i" and argument:
        return f"http_{argument}"
    if directive == "t" and argument:
        return None if argument.endswith("_frac") else "time"
    if directive == "T" and argument in ("ms", "us"):
        return f"duration_{argument}"
    return _APACHE.get(directive)


def _compile(
    text: str, field: re.Pattern[str], title: str, name_of: Callable[[re.Match[str]], str | None]
) -> LogFormat:
    names: list[str] = []
    parts: list[str] = []
    end = 0
    for match in field.finditer(text):
        parts.append(_literal(text[end : match.start()]))
        end = match.end()
        if match[0] == "%%":
            parts.append("%")
            continue
        name = name_of(match) or f"unnamed_{len(names)}"
        names.append(name)
        if title == "Apache log" and name == "time":
            parts.append(_apache_time(match[1]))
        else:
            parts.append(_group(name, text[end : end + 1]))
    parts.append(_literal(text[end:].rstrip()))
    return regex_format(title, "".join(parts), names)


def _literal(text: str) -> str:
    """Returns an expression for the text between fields; any number of blanks is as good as one."""
    return r"\s+".join(re.escape(part) for part in re.split(r"[ \n\r]+", text))


def _apache_time(argument: str | None) -> str:
    """Returns the expression of a time: in brackets, or as strftime writes it."""
    if not argument:
        return r"\[([^\]]*)\]"
    return rf"(\S+(?: +\S+){{{argument.strip().count(' ')}}})"


def _group(name: str, following: str) -> str:
    """Returns the expression of a field, by what it is and by the character behind it."""
    if following == '"':
        return r'([^"\\]*(?:\\.[^"\\]*)*)'
    if name == "status":
        return r"(\d{3}|-)"
    if name in _NUMBERS:
        return r"([\d.]*|-)"
    if name == "time_local" and following != "]":
        return r"(\S+ [+-]\d{4})"
    if name.startswith("upstream_") or name == "http_x_forwarded_for":
        return r"([^\s,]*(?:(?:,| :) [^\s,]+)*)"
    if following == "\t":
        return r"([^\t]*)"
    if name in _TEXTS or name.startswith("http_"):
        return r"(.*?)" if following else r"(.*?)(?=\s*$)"
    if following in ("", "\n", ":"):
        return r"(\S*)"
    return rf"([^{re.escape(following)}]*)"
