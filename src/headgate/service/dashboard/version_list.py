"""The published versions of a rulebook as a list, each with a form that rolls back to it."""

from __future__ import annotations

from headgate.service.admin import schema
from headgate.service.dashboard.html import Html, html
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.dashboard.rule_page import time_tag

_VERSION = """<li class="version"><span class="number">{number}</span> {time} <b>{author}</b>
<span class="what">{note}{rolled}</span>
<span class="buttons"><a class="button small" href="{root}/rules/version?number={number}">{show}</a>
{rollback}</span></li>"""

_ROLLBACK = """<form method="post" action="{root}/rules/rollback" class="inline">{form}
<input type="hidden" name="to" value="{number}"><input type="hidden" name="base" value="{base}">
<label class="hidden" for="why{number}">{why}</label>
<input id="why{number}" name="note" required maxlength="300" placeholder="{why}" autocomplete="off">
<button class="button small" type="submit">{text}</button></form>"""


def version_list(view: View, versions: list[schema.VersionInfo], base: int) -> Html:
    """Returns the versions, the newest first; a rollback holds only if `base` is still the version in force."""
    if not versions:
        return html('<p class="empty">{text}</p>', text=view.t("No version is kept here."))
    return html(
        '<ul class="plain versions">{rows}</ul>',
        rows=(_version_row(view, each, base, is_current=index == 0) for index, each in enumerate(versions)),
    )


def _version_row(view: View, version: schema.VersionInfo, base: int, *, is_current: bool) -> Html:
    rollback = Html("")
    if is_current:
        rollback = html(' <span class="badge live">{text}</span>', text=view.t("in force"))
    elif view.is_operator:
        rollback = html(
            _ROLLBACK,
            root=ROOT,
            form=view.form_field(),
            number=str(version.version),
            base=str(base),
            why=view.t("Why?"),
            text=view.t("Roll back to it"),
        )
    rolled = (
        "" if version.rolled_back_to is None else " " + view.t("(version {n} again)", n=version.rolled_back_to)
    )
    return html(
        _VERSION,
        root=ROOT,
        number=str(version.version),
        time=time_tag(version.at),
        author=version.author,
        note=version.note,
        rolled=rolled,
        show=view.t("Show"),
        rollback=rollback,
    )
