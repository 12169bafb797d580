"""The rulebook: view and edit it, see what is wrong and what would change, preview, publish, history and rollback.

Two operators who edit at once lose nothing: a publication names the version that its editor began with, and is
refused if there is a newer one. The editor then keeps its text, shows what the other one changed, and publishes
over that version only when it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import EngineUnavailable, HeadgateError, InvalidRule
from headgate.rules.distribution.published_versions import VersionConflict
from headgate.service.admin import schema
from headgate.service.admin.request import UnpublishableRulebook
from headgate.service.asgi import HttpError, Response
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.operator_actions import OperatorActions
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.preview import Previews, preview_html
from headgate.service.dashboard.request import json_response, page_response, redirect, whole_number
from headgate.service.dashboard.rule_page import time_tag
from headgate.service.dashboard.rulebook_diff import changes_html, text_diff_html

_FORMATS: Final = ("yaml", "toml", "json")
LARGE_TEXT_CHARS: Final = 256 * 1024

_PAGE = """<div class="title"><h1>{title}</h1><p class="sub">{source}</p></div>
{problem}
<form id="book" method="post" action="{root}/rules/publish">{form}
<input type="hidden" name="base" value="{base}"><input type="hidden" name="format" value="{format}">
<div class="columns wide"><section class="card"><div class="card-head"><h2 id="text-label">{text_label}</h2>
<span id="checked" class="state idle" role="status"></span></div>
<div class="editor"><pre id="lines" aria-hidden="true"></pre><textarea id="text" name="text" spellcheck="false"
autocapitalize="off" autocomplete="off" aria-labelledby="text-label"{readonly} wrap="off">
{text}</textarea></div></section>
<div><section class="card"><h2>{problems_label}</h2><div id="problems" role="status">{problems}</div></section>
<section class="card"><h2>{changes_label}</h2><div id="changes">{changes}</div></section>
<section class="card"><div class="card-head"><h2>{preview_label}</h2>
<button class="button small" id="preview-button" type="button">{replay}</button></div>
<p class="hint">{preview_hint}</p>{upload}<div id="preview" role="status"></div></section>
{publish}</div></div></form>
<section class="card"><h2>{history_label}</h2>{history}</section>"""

_UPLOAD = """<label for="log">{label}</label>
<input id="log" type="file" accept=".log,.txt,.json,.jsonl,text/*">"""

_PUBLISH = """<section class="card"><h2>{title}</h2><label for="note">{note_label}</label>
<input id="note" name="note" maxlength="300" value="{note}" required autocomplete="off">
<div class="buttons"><button class="button primary" type="submit">{button}</button></div></section>"""

_VERSION = """<li class="version"><span class="number">{number}</span> {time} <b>{author}</b>
<span class="what">{note}{rolled}</span>
<span class="buttons"><a class="button small" href="{root}/rules/version?number={number}">{show}</a>
{rollback}</span></li>"""

_ROLLBACK = """<form method="post" action="{root}/rules/rollback" class="inline">{form}
<input type="hidden" name="to" value="{number}"><label class="hidden" for="why{number}">{why}</label>
<input id="why{number}" name="note" required maxlength="300" placeholder="{why}" autocomplete="off">
<button class="button small" type="submit">{text}</button></form>"""


class RulebookPage:
    """Shows, checks, previews and publishes rulebooks."""

    def __init__(self, limiter: AsyncRuleLimiter, sources: DashboardSources, actions: OperatorActions) -> None:
        self._limiter, self._sources, self._actions = limiter, sources, actions
        self._previews = Previews(sources)
        self._large_checks = asyncio.Lock()

    async def show(self, page: PageRequest) -> Response:
        current = await self._actions.call_handler("rules")
        base = 0 if current.version is None else current.version.version
        return await self._page(page, current, current.text, base)

    async def _page(
        self,
        page: PageRequest,
        current: schema.RulebookInfo,
        text: str,
        base: int,
        problem: Html | None = None,
        status: int = 200,
    ) -> Response:
        view, form_format = page.view, page.form.get("format", current.format)
        can_publish = self._sources.can_publish
        version = current.version
        if not can_publish:
            source = view.t(
                "From {source}: change it there. Here you can check and preview a change.", source=current.source
            )
        elif version is None:
            source = ""
        else:
            source = view.t("Version {n}, by {author}", n=version.version, author=version.author)
        publish = Html("")
        if view.is_operator and can_publish:
            publish = html(
                _PUBLISH,
                title=view.t("Publish"),
                note_label=view.t("A note, for the history"),
                note=page.form.get("note", ""),
                button=view.t("Publish version {n}", n=base + 1),
            )
        data = {
            "texts": {word: view.t(word) for word in ("checking", "valid", "problems", "replaying", "unsaved")},
            "form": view.form_token,
            "saved": current.text,
        }
        body = html(
            _PAGE,
            root=ROOT,
            title=view.t("Rulebook"),
            source=source,
            problem=problem,
            form=view.form_field(),
            base=str(base),
            format=form_format,
            text_label=view.t("The rulebook ({format})", format=form_format),
            text=text,
            readonly=Html("") if view.is_operator else Html(" readonly"),
            problems_label=view.t("Problems"),
            problems=html('<p class="empty">{text}</p>', text=view.t("none")),
            changes_label=view.t("What it changes"),
            changes=html('<p class="empty">{text}</p>', text=view.t("nothing")),
            preview_label=view.t("Preview"),
            replay=view.t("Replay recent calls"),
            preview_hint=view.t(
                "Decides the recent calls by the rules in force and by these, and shows what differs. Nothing is "
                "published."
            ),
            upload=html(_UPLOAD, label=view.t("Or a log, up to 8 MB")) if view.is_operator else None,
            publish=publish,
            history_label=view.t("History"),
            history=await self._history(view),
        )
        return page_response(
            view.page(view.t("Rules"), body, active="rules", scripts=("editor.js",), data=data), status
        )

    async def check(self, page: PageRequest) -> Response:
        """Says what is wrong in a text, and what it would change; for the script."""
        text, kind = _text_of(page.form)
        try:
            result = await self._validate(text, kind)
        except UnpublishableRulebook as error:
            problems = [{"line": each.line, "problem": each.problem} for each in error.problems]
            return json_response({"problems": problems, "warnings": [], "html": ""})
        current = await self._actions.call_handler("rules")
        changes = join([changes_html(page.view, result.changes), text_diff_html(page.view, current.text, text)])
        return json_response({"problems": [], "warnings": result.warnings, "html": changes})

    async def _validate(self, text: str, kind: str) -> schema.ValidationResult:
        """Checks a text; a large one, which takes seconds of a core, only while no other is checked."""
        if len(text) <= LARGE_TEXT_CHARS:
            return await self._actions.call_handler("validate", None, text.encode(), format=kind)
        if self._large_checks.locked():
            raise InvalidRule("Another large rulebook is being checked: one at a time. Try again in a moment.")
        async with self._large_checks:
            return await self._actions.call_handler("validate", None, text.encode(), format=kind)

    async def preview(self, page: PageRequest) -> Response:
        """Replays recent calls under the text and under the rules in force; for the script."""
        text, kind = _text_of(page.form)
        await self._validate(text, kind)
        current = await self._actions.call_handler("rules")
        texts = (text, kind), (current.text, current.format)
        if log := page.form.get("log"):
            if not page.view.is_operator:
                raise HttpError(403, "Only operators upload logs.")
            result = await self._previews.replay_log(*texts, log)
        else:
            result = await self._previews.replay_recent(*texts)
        return json_response({"html": preview_html(page.view, result), "calls": result.get("calls", 0)})

    async def publish(self, page: PageRequest) -> Response:
        """Publishes the text, if its editor began with the version in force."""
        text, kind = _text_of(page.form)
        base, note, number = page.form.get("base", ""), page.form.get("note", "").strip(), 0
        try:
            number = whole_number("base", base)
            if not note:
                raise HttpError(400, page.view.t("Write a note: why do you change the rules?"))
            await self._actions.call_handler(
                "publish",
                None,
                text.encode(),
                page.actor,
                format=kind,
                expected=number,
                query={"note": note},
            )
        except VersionConflict as error:
            return await self._conflict(page, text, number, str(error))
        except (HttpError, HeadgateError) as error:
            current = await self._actions.call_handler("rules")
            status = 503 if isinstance(error, EngineUnavailable) else 400
            return await self._page(page, current, text, number, _problem(error), status)
        return redirect(f"{ROOT}/rules")

    async def _conflict(self, page: PageRequest, text: str, base: int, message: str) -> Response:
        """Shows what somebody else published meanwhile, and keeps the text."""
        view, current = page.view, await self._actions.call_handler("rules")
        newer = 0 if current.version is None else current.version.version
        began_with = ""
        with contextlib.suppress(HeadgateError):
            began_with = (await self._actions.call_handler("version", {"version": str(base)})).text
        problem = html(
            '<section class="problem" role="alert"><p>{message}</p><p>{hint}</p>{diff}</section>',
            message=message,
            hint=view.t(
                "Your text is kept below. This is what changed since version {base}; take over what you want, and "
                "publish again: it will then follow version {newer}.",
                base=base,
                newer=newer,
            ),
            diff=text_diff_html(view, began_with, current.text),
        )
        return await self._page(page, current, text, newer, problem, 409)

    async def roll_back(self, page: PageRequest) -> Response:
        """Publishes an earlier version again."""
        number, note = whole_number("to", page.needed("to")), page.form.get("note", "").strip()
        body = schema.RollbackRequest(number, note)
        try:
            if not note:
                raise HttpError(400, page.view.t("Write a note: why do you change the rules?"))
            await self._actions.call_handler("rollback", None, body, page.actor)
        except (HttpError, HeadgateError) as error:
            current = await self._actions.call_handler("rules")
            base = 0 if current.version is None else current.version.version
            return await self._page(page, current, current.text, base, _problem(error), 400)
        return redirect(f"{ROOT}/rules")

    async def version(self, page: PageRequest) -> Response:
        """Shows one version, and what it changed."""
        view, number = page.view, whole_number("number", page.needed("number"))
        stored = await self._actions.call_handler("version", {"version": str(number)})
        before = ""
        with contextlib.suppress(HeadgateError):
            before = (await self._actions.call_handler("version", {"version": str(number - 1)})).text
        info = stored.version
        body = html(
            '<div class="title"><p class="crumb"><a href="{root}/rules">{rules}</a></p><h1>{title}</h1>'
            '<p class="sub">{time} {author} · {note}</p></div>'
            '<section class="card"><h2>{changed}</h2>{diff}</section>'
            '<section class="card"><h2>{text_label}</h2><pre class="text" tabindex="0">{text}</pre></section>',
            root=ROOT,
            rules=view.t("Rulebook"),
            title=view.t("Version {n}", n=number),
            time=time_tag(info.at),
            author=info.author,
            note=info.note,
            changed=view.t("What it changed"),
            diff=text_diff_html(view, before, stored.text),
            text_label=view.t("Its text"),
            text=stored.text,
        )
        return page_response(view.page(view.t("Version {n}", n=number), body, active="rules"))

    async def _history(self, view: View) -> Html:
        versions = await self._sources.versions()
        if not versions:
            return html('<p class="empty">{text}</p>', text=view.t("No version is kept here."))
        return html(
            '<ul class="plain versions">{rows}</ul>',
            rows=(_version_row(view, each, is_current=index == 0) for index, each in enumerate(versions)),
        )


def _version_row(view: View, version: schema.VersionInfo, *, is_current: bool) -> Html:
    rollback = Html("")
    if is_current:
        rollback = html(' <span class="badge live">{text}</span>', text=view.t("in force"))
    elif view.is_operator:
        rollback = html(
            _ROLLBACK,
            root=ROOT,
            form=view.form_field(),
            number=str(version.version),
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


def _text_of(form: dict[str, str]) -> tuple[str, str]:
    """Returns the text of a form and its format. Browsers send line ends as CRLF."""
    kind = form.get("format", "yaml")
    if kind not in _FORMATS:
        raise HttpError(400, f"format is one of {', '.join(_FORMATS)}.")
    return form.get("text", "").replace("\r\n", "\n"), kind


def _problem(error: Exception) -> Html:
    lines: Any = [str(error)]
    if isinstance(error, UnpublishableRulebook):
        lines = [f"{each.line or '-'}: {each.problem}" for each in error.problems]
    return html(
        '<div class="problem" role="alert">{lines}</div>',
        lines=[html("<p>{line}</p>", line=line) for line in lines],
    )
