"""The audit page: who changed what, when, from where and why, with what it was before and after."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from headgate.errors import HeadgateError
from headgate.operations.audit_trail import AuditEntry
from headgate.service.asgi import Response
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.number_format import span_text
from headgate.service.dashboard.operator_actions import OperatorActions
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.request import page_response, whole_number
from headgate.service.dashboard.rule_page import key_link, time_tag

SHOWN_ENTRIES: Final = 200  # on one page
_SHOWN_APART: Final = ("rule", "key", "reason", "note", "before", "after", "before_ttl", "undoes")

_PAGE = """<div class="card-head title"><h1>{title}</h1><form class="inline" method="get" action="{root}/audit">
<label class="hidden" for="find">{find}</label><input id="find" name="find" type="search" value="{found}"
placeholder="{find}"><button class="button" type="submit">{search}</button></form></div>
{problem}<section class="card"><div class="scroll" tabindex="0" role="region" aria-label="{title}">
<table class="audit">
<thead><tr><th scope="col">{when}</th><th scope="col">{who}</th><th scope="col">{what}</th>
<th scope="col">{before}</th><th scope="col">{after}</th><th scope="col">{why}</th></tr></thead>
<tbody>{rows}</tbody></table></div>{empty}</section>"""


class AuditPage:
    """Shows the audit trail."""

    def __init__(self, sources: DashboardSources, actions: OperatorActions) -> None:
        self._sources, self._actions = sources, actions

    async def show(self, page: PageRequest) -> Response:
        view, find = page.view, page.optional("find")
        problem: str | None = None
        changes: list[AuditEntry] = []
        try:
            changes = await self._sources.changes()
        except HeadgateError as error:
            problem = str(error)
        found = [each for each in changes if find.lower() in _searched(each)]
        first = whole_number("from", page.query.get("from", "0"))
        shown = found[first : first + SHOWN_ENTRIES]
        body = html(
            _PAGE,
            root=ROOT,
            title=view.t("Audit"),
            find=view.t("Find a person, a rule or a key"),
            found=find,
            search=view.t("Find"),
            problem=html('<p class="problem" role="alert">{text}</p>', text=problem) if problem else None,
            when=view.t("When"),
            who=view.t("Who, from where"),
            what=view.t("What"),
            before=view.t("Before"),
            after=view.t("After"),
            why=view.t("Why"),
            rows=join(_row(view, each) for each in shown),
            empty=_older(view, find, first + SHOWN_ENTRIES, len(found))
            if shown
            else html('<p class="empty">{text}</p>', text=view.t("Nothing was changed yet.")),
        )
        return page_response(view.page(view.t("Audit"), body, active="audit"))


def _older(view: View, find: str, first: int, entries: int) -> Html:
    """Returns the link to the next page; nothing behind the last."""
    if first >= entries:
        return Html("")
    text = view.t("{n} older changes", n=f"{entries - first:,}")
    link = f"{ROOT}/audit?{urlencode({'find': find, 'from': first})}"
    return html('<p class="more"><a class="button" href="{link}">{text}</a></p>', link=link, text=text)


def describe_change(view: View, entry: AuditEntry) -> str:
    """Returns a change in one line.

    >>> details = {"after": "9/s", "ttl": 3600, "reason": "a sale"}
    >>> view = View(None, "", "en", "auto", "/")
    >>> describe_change(view, AuditEntry("1", 0, "override set", "ann", "", details))
    'override set: 9/s, for 1 h, “a sale”'
    """
    details, event = entry.details, view.t(entry.event)
    parts = [str(details[name]) for name in ("after",) if details.get(name) is not None]
    parts += _more(view, entry)
    if details.get("reason"):
        parts.append(f"“{details['reason']}”")
    return view.t("{event}: {details}", event=event, details=", ".join(parts)) if parts else event


def _more(view: View, entry: AuditEntry) -> list[str]:
    """Returns the details that have no column of their own."""
    texts = []
    for name, value in entry.details.items():
        if name == "ttl" and isinstance(value, int | float):
            texts.append(view.t("for {span}", span=span_text(value)))
        elif name not in _SHOWN_APART and value:
            texts.append(f"{name}={value}")
    return texts


def _row(view: View, entry: AuditEntry) -> Html:
    details = entry.details
    rule, key = details.get("rule"), details.get("key")
    target = Html("")
    if rule and key:
        target = html(
            ' <a href="{link}">{rule} · {key}</a>', link=key_link(str(rule), str(key)), rule=rule, key=key
        )
    elif entry.event.startswith("rules ") and details.get("after") is not None:
        link = f"{ROOT}/rules/version?number={details['after']}"
        target = html(' <a href="{link}">{text}</a>', link=link, text=view.t("What it changed"))
    more = ", ".join(_more(view, entry))
    before, after = (_side(entry, details.get(name)) for name in ("before", "after"))
    return html(
        "<tr><td>{when}</td><td><b>{who}</b> <small>{remote}</small></td><td>{event}{target} "
        "<small>{more}</small></td><td>{before}</td><td>{after}</td><td>{why}</td></tr>",
        when=time_tag(entry.at_us / 1e6),
        who=entry.author,
        remote=entry.remote.rpartition(":")[0] or entry.remote,
        event=view.t(entry.event),
        target=target,
        more=more,
        before=before,
        after=after,
        why=str(details.get("reason") or details.get("note") or ""),
    )


def _side(entry: AuditEntry, value: object) -> Html | None:
    if value is None:
        return None
    if entry.event.startswith("rules "):
        return html('<a href="{root}/rules/version?number={n}">{n}</a>', root=ROOT, n=str(value))
    return html("<code>{value}</code>", value=str(value))


def _searched(entry: AuditEntry) -> str:
    return " ".join(map(str, (entry.event, entry.author, entry.remote, *entry.details.values()))).lower()
