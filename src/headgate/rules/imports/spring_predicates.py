"""Translates predicates of Spring Cloud Gateway into conditions, and tells whether two routes can overlap.

Path, Host, Method, Header, Query, Cookie and RemoteAddr become tests on attributes. Regular expressions have no
equivalent: only the presence of the value is tested. A translation is never narrower than Spring's predicate, so
that no limit is lost; where it is wider, a note says so.
"""

from __future__ import annotations

import re
from typing import Any

from headgate.rules.imports.yaml_tree import fold_name
from headgate.rules.parsing.document_tree import ListNode, MappingNode, ScalarNode

Tests = dict[str, Any]
TranslatedPredicate = tuple[Tests, str | None, bool]  # the tests, a note, whether they are wider

_braces = re.compile(r"\{[^}]*\}")
_valid_capture = re.compile(r"\{[a-z][a-z0-9_]*\}")
_literal = re.compile(r"[\w /-]+")
_STANDARD_ATTRIBUTES = {"method", "path", "host", "address", "user", "plan", "server"}
_ATTRIBUTE_PREFIXES = {"Header": "header.", "Query": "argument.", "Cookie": "cookie."}
_ANY_VALUE_EXPRESSIONS = (".+", ".*", "")


def translate_predicate(name: str, arguments: MappingNode | list[ScalarNode]) -> TranslatedPredicate:
    """Returns the tests for a predicate, a note if they differ from it, and whether they are wider."""
    texts = [argument.text for argument in arguments] if isinstance(arguments, list) else _texts(arguments)
    if name == "Method" and texts:
        return {"method": _one_or_all([text.upper() for text in texts])}, None, False
    if name == "RemoteAddr" and texts:
        return {"address": _one_or_all([_network(text) for text in texts])}, None, False
    if name == "Path" and texts:
        return _paths([text for text in texts if text not in ("true", "false")])
    if name == "Host" and texts:
        return _hosts(texts)
    if name in _ATTRIBUTE_PREFIXES and texts:
        return _named_value(name, texts[0], texts[1] if len(texts) > 1 else "")
    return {}, f"the predicate {name} has no equivalent: it is left out, and the rule applies without it.", True


def disjoint(first: Tests, second: Tests) -> bool:
    """Returns whether no call can pass both. False if that is unknown."""
    for name, overlap in (("path", _paths_overlap), ("method", _methods_overlap), ("host", _hosts_overlap)):
        if name in first and name in second:
            pairs = [(left, right) for left in _as_list(first[name]) for right in _as_list(second[name])]
            if not any(overlap(left, right) for left, right in pairs):
                return True
    return False


def _paths(texts: list[str]) -> TranslatedPredicate:
    patterns, sentences = [], []
    for text in texts:
        pattern, wider = _pattern(text)
        if wider:
            sentences.append(f'the path "{text}" became "{pattern}", which is wider')
        patterns.append(pattern)
    tests = {} if "/**" in patterns else {"path": _one_or_all(patterns)}
    return tests, f"{'; '.join(sentences)}." if sentences else None, bool(sentences)


def _pattern(text: str) -> tuple[str, bool]:
    """Translates a path of Spring into a path pattern; returns it and whether it is wider."""
    converted, wider, captures = [], False, set[str]()
    # A regular expression in braces may contain a slash.
    escaped = _braces.sub(lambda match: match[0].replace("/", "\0"), text)
    for part in escaped.split("/"):
        if part.startswith("{*") and part.endswith("}"):
            part = "**"
        if ":" in part and "{" in part:
            wider = True
        is_capture = (
            _valid_capture.fullmatch(part) and part[1:-1] not in _STANDARD_ATTRIBUTES and part not in captures
        )
        captures.add(part)
        segment = part if is_capture else _braces.sub("*", part)
        wider = wider or "?" in segment or bool(re.search(r"[{}\0]", segment) and not is_capture)
        segment = segment if is_capture else re.sub(r"[?{}\0]+", "*", segment)
        if "**" in segment and segment != "**":
            segment = re.sub(r"\*+", "*", segment)
        if segment in (".", ".."):
            continue
        converted.append(segment)
        if segment == "**" and converted.count("**") > 1:
            wildcard_index = converted.index("**")
            return "/".join(converted[: wildcard_index + 1]) if text.startswith("/") else "/" + "/".join(
                converted[: wildcard_index + 1]
            ), True
    pattern = "/".join(converted)
    return pattern if pattern.startswith("/") else f"/{pattern}", wider


def _hosts(texts: list[str]) -> TranslatedPredicate:
    hosts, wider = [], False
    for text in texts:
        host = re.sub(r":[0-9*]+$", "", text)
        wider = wider or host != text or bool(re.search(r"(?<!\*)\*(?!\*)|\{|\?", host))
        glob = re.sub(r"\*+", "*", re.sub(r"[?]", "*", _braces.sub("*", host)))
        hosts += [glob, glob[2:]] if host.startswith("**.") and len(glob) > 2 else [glob]
    sentence = "in a host * is any text, also with dots, and a port does not count." if wider else None
    return ({} if "*" in hosts else {"host": _one_or_all(hosts)}), sentence, False


def _named_value(name: str, part: str, expression: str) -> TranslatedPredicate:
    attribute = _ATTRIBUTE_PREFIXES[name] + (part.lower() if name == "Header" else part)
    if expression and _literal.fullmatch(expression):
        return {attribute: expression}, None, False
    if expression in _ANY_VALUE_EXPRESSIONS:
        sentence = f"an empty {attribute} counts as absent here." if name == "Query" else None
        return {attribute: True}, sentence, False
    note = f'the regular expression "{expression}" has no equivalent: {attribute} need only be there.'
    return {attribute: True}, note, True


def _paths_overlap(first: str, second: str) -> bool:
    first_segments, second_segments = _segments(first), _segments(second)
    for left, right in zip(first_segments, second_segments, strict=False):
        if "**" in (left, right):
            return True
        if left != right and not re.search(r"[*{]", left + right):
            return False
    surplus = first_segments[len(second_segments) :] or second_segments[len(first_segments) :]
    return not surplus or surplus[0] == "**"


def _methods_overlap(first: str, second: str) -> bool:
    return first == second


def _hosts_overlap(first: str, second: str) -> bool:
    return first.lower() == second.lower() or "*" in first + second


def _segments(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _network(text: str) -> str:
    return text.strip()


def _texts(arguments: MappingNode) -> list[str]:
    """Returns the values of a long form, listed or single, a name before its regular expression."""
    order = ("name", "header", "param", "patterns", "methods", "sources", "regexp", "regex")
    by_name = {fold_name(name): node for name, (_, node) in arguments.entries.items()}
    ordered = [by_name[name] for name in order if name in by_name] or list(by_name.values())
    values = []
    for node in ordered:
        nodes = node.nodes if isinstance(node, ListNode) else [node]
        texts = [item.text for item in nodes if isinstance(item, ScalarNode)]
        values += [part.strip() for text in texts for part in (text.split(",") if len(ordered) == 1 else [text])]
    return values


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _one_or_all(values: list[str]) -> Any:
    return values[0] if len(values) == 1 else values
