"""What a predicate of Spring Cloud Gateway is in our words, and whether two routes can meet.

Path, Host, Method, Header, Query, Cookie and RemoteAddr become tests on attributes. Regular expressions have no
equivalent: of those only that something is there is tested. What is said here is never narrower than what Spring
says, so that no limit is lost; where it is wider, a sentence says so.
"""

from __future__ import annotations

import re
from typing import Any

from headgate.rules.imports.yaml_tree import fold_name
from headgate.rules.parsing.document_tree import Items, Scalar, Table

Tests = dict[str, Any]
TranslatedPredicate = tuple[Tests, str | None, bool]  # the tests, what to say about them, whether they are wider

_capture = re.compile(r"\{[^}]*\}")
_valid = re.compile(r"\{[a-z][a-z0-9_]*\}")
_literal = re.compile(r"[\w /-]+")
_WELL_KNOWN = {"method", "path", "host", "address", "user", "plan", "server"}
_PARTS = {"Header": "header.", "Query": "argument.", "Cookie": "cookie."}
_PRESENT = (".+", ".*", "")


def translate_predicate(name: str, arguments: Table | list[Scalar]) -> TranslatedPredicate:
    """What the predicate means; a sentence if that is not all of it."""
    texts = [one.text for one in arguments] if isinstance(arguments, list) else _texts(arguments)
    if name == "Method" and texts:
        return {"method": _one_or_all([text.upper() for text in texts])}, None, False
    if name == "RemoteAddr" and texts:
        return {"address": _one_or_all([_network(text) for text in texts])}, None, False
    if name == "Path" and texts:
        return _paths([text for text in texts if text not in ("true", "false")])
    if name == "Host" and texts:
        return _hosts(texts)
    if name in _PARTS and texts:
        return _part(name, texts[0], texts[1] if len(texts) > 1 else "")
    return {}, f"the predicate {name} has no equivalent: it is left out, and the rule applies without it.", True


def disjoint(one: Tests, other: Tests) -> bool:
    """Whether no call can pass both. False if that cannot be told."""
    for name, meet in (("path", _paths_meet), ("method", _methods_meet), ("host", _hosts_meet)):
        if name in one and name in other:
            pairs = [(mine, theirs) for mine in _listed(one[name]) for theirs in _listed(other[name])]
            if not any(meet(mine, theirs) for mine, theirs in pairs):
                return True
    return False


def _paths(texts: list[str]) -> TranslatedPredicate:
    patterns, sentences = [], []
    for text in texts:
        pattern, loose = _pattern(text)
        if loose:
            sentences.append(f'the path "{text}" became "{pattern}", which is wider')
        patterns.append(pattern)
    tests = {} if "/**" in patterns else {"path": _one_or_all(patterns)}
    return tests, f"{'; '.join(sentences)}." if sentences else None, bool(sentences)


def _pattern(text: str) -> tuple[str, bool]:
    """A path of Spring as a pattern of ours, and whether it had to be made wider."""
    parts, loose, seen = [], False, set[str]()
    # What is in braces may hold a slash, if it is a regular expression.
    covered = _capture.sub(lambda found: found[0].replace("/", "\0"), text)
    for part in covered.split("/"):
        if part.startswith("{*") and part.endswith("}"):
            part = "**"
        if ":" in part and "{" in part:
            loose = True
        usable = _valid.fullmatch(part) and part[1:-1] not in _WELL_KNOWN and part not in seen
        seen.add(part)
        cleaned = part if usable else _capture.sub("*", part)
        loose = loose or "?" in cleaned or bool(re.search(r"[{}\0]", cleaned) and not usable)
        cleaned = cleaned if usable else re.sub(r"[?{}\0]+", "*", cleaned)
        if "**" in cleaned and cleaned != "**":
            cleaned = re.sub(r"\*+", "*", cleaned)
        if cleaned in (".", ".."):
            continue
        parts.append(cleaned)
        if cleaned == "**" and parts.count("**") > 1:
            first = parts.index("**")
            return "/".join(parts[: first + 1]) if text.startswith("/") else "/" + "/".join(
                parts[: first + 1]
            ), True
    pattern = "/".join(parts)
    return pattern if pattern.startswith("/") else f"/{pattern}", loose


def _hosts(texts: list[str]) -> TranslatedPredicate:
    hosts, wider = [], False
    for text in texts:
        bare = re.sub(r":[0-9*]+$", "", text)
        wider = wider or bare != text or bool(re.search(r"(?<!\*)\*(?!\*)|\{|\?", bare))
        glob = re.sub(r"\*+", "*", re.sub(r"[?]", "*", _capture.sub("*", bare)))
        hosts += [glob, glob[2:]] if bare.startswith("**.") and len(glob) > 2 else [glob]
    sentence = "in a host * is any text, also with dots, and a port does not count." if wider else None
    return ({} if "*" in hosts else {"host": _one_or_all(hosts)}), sentence, False


def _part(name: str, part: str, expression: str) -> TranslatedPredicate:
    attribute = _PARTS[name] + (part.lower() if name == "Header" else part)
    if expression and _literal.fullmatch(expression):
        return {attribute: expression}, None, False
    if expression in _PRESENT:
        sentence = f"an empty {attribute} counts as absent here." if name == "Query" else None
        return {attribute: True}, sentence, False
    said = f'the regular expression "{expression}" has no equivalent: {attribute} need only be there.'
    return {attribute: True}, said, True


def _paths_meet(one: str, other: str) -> bool:
    mine, theirs = _segments(one), _segments(other)
    for left, right in zip(mine, theirs, strict=False):
        if "**" in (left, right):
            return True
        if left != right and not re.search(r"[*{]", left + right):
            return False
    longer = mine[len(theirs) :] or theirs[len(mine) :]
    return not longer or longer[0] == "**"


def _methods_meet(one: str, other: str) -> bool:
    return one == other


def _hosts_meet(one: str, other: str) -> bool:
    return one.lower() == other.lower() or "*" in one + other


def _segments(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _network(text: str) -> str:
    return text.strip()


def _texts(arguments: Table) -> list[str]:
    """The values of a long form: in lists or one by one, a name before its regular expression."""
    order = ("name", "header", "param", "patterns", "methods", "sources", "regexp", "regex")
    known = {fold_name(name): node for name, (_, node) in arguments.entries.items()}
    chosen = [known[name] for name in order if name in known] or list(known.values())
    found = []
    for node in chosen:
        nodes = node.nodes if isinstance(node, Items) else [node]
        texts = [one.text for one in nodes if isinstance(one, Scalar)]
        found += [part.strip() for text in texts for part in (text.split(",") if len(chosen) == 1 else [text])]
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _one_or_all(values: list[str]) -> Any:
    return values[0] if len(values) == 1 else values
