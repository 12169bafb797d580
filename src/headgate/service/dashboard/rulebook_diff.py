"""Compares rulebooks: by meaning, and line by line."""

from __future__ import annotations

from difflib import unified_diff
from typing import Final

import msgspec

from headgate.operations import compare_rulebooks
from headgate.rules import load
from headgate.service.admin import schema
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.page_layout import View

MAX_LINES: Final = 400
_CONTEXT: Final = 2


def changes_between(old: schema.StoredVersion, new: schema.StoredVersion) -> schema.RulebookChanges:
    """Returns what a version changed in an earlier one, by meaning. It parses both."""
    books = [load.parse(each.text, format=each.format) for each in (old, new)]
    return msgspec.convert(compare_rulebooks.document(compare_rulebooks.compare(*books)), schema.RulebookChanges)


def changes_html(view: View, changes: schema.RulebookChanges) -> Html:
    """Returns the changes by meaning."""
    if changes.same:
        return html('<p class="empty">{text}</p>', text=view.t("nothing"))
    items = [_fields(view.t("The whole book"), "", changes.book, None)] if changes.book else []
    items += [
        _fields(rule.rule, view.t(rule.change), rule.fields, rule.counts_start_anew) for rule in changes.rules
    ]
    return html('<ul class="plain diff-list">{items}</ul>', items=items)


def _fields(name: str, kind: str, fields: list[schema.FieldChange], anew: str | None) -> Html:
    rows = (
        html(
            '<div class="field"><code>{name}</code> {old}{arrow}{new}</div>',
            name=each.name,
            old=html("<del>{text}</del>", text=each.old) if each.old is not None else None,
            arrow=" → " if each.old is not None and each.new is not None else " ",
            new=html("<ins>{text}</ins>", text=each.new) if each.new is not None else None,
        )
        for each in fields
        if each.name != "name" or not kind  # a rule's name is above its fields
    )
    return html(
        '<li><b>{name}</b> <span class="badge">{kind}</span>{rows}{anew}</li>',
        name=name,
        kind=kind,
        rows=rows,
        anew=html('<div class="warning">⚠ {text}</div>', text=f"counters start at zero: {anew}") if anew else None,
    )


def text_diff_html(view: View, old: str, new: str) -> Html:
    """Returns the lines that differ, as a unified diff."""
    lines = list(unified_diff(old.splitlines(), new.splitlines(), n=_CONTEXT, lineterm=""))[2:]
    if not lines:
        return Html("")
    shown = join(_line(line) for line in lines[:MAX_LINES])
    more = "" if len(lines) <= MAX_LINES else view.t("and {n} more lines", n=len(lines) - MAX_LINES)
    return html('<pre class="diff" tabindex="0">{lines}</pre><p class="hint">{more}</p>', lines=shown, more=more)


def _line(line: str) -> Html:
    tag = {"+": "ins", "-": "del"}.get(line[:1], "span")
    return html("<{tag}>{line}</{tag}>", tag=Html(tag), line=line + "\n")
