"""The rulebook: view and edit it, see what is wrong and what would change, preview, publish, history and rollback.

Two operators who edit at once lose nothing: a publication names the version that its editor began with, and is
refused if there is a newer one. The editor then keeps its text, shows what the other one changed, and publishes
over that version only when it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import EngineUnavailable, HeadgateError, InvalidRule
from headgate.rules.distribution.published_versions import VersionConflict
from headgate.service.admin import schema
from headgate.service.admin.request import UnpublishableRulebook
from headgate.service.asgi import HttpError, Response, encode_headers
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.dashboard.engine_availability import may_have_happened
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.operator_actions import OperatorActions
from headgate.service.dashboard.page_layout import ROOT
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.preview import Previews, preview_html
from headgate.service.dashboard.request import (
    cookies_of,
    json_response,
    page_response,
    redirect,
    set_cookie,
    whole_number,
)
from headgate.service.dashboard.rule_page import time_tag
from headgate.service.dashboard.rulebook_diff import changes_between, changes_html, text_diff_html
from headgate.service.dashboard.uncertain_publication import COOKIE, COOKIE_S, UncertainPublication, unpack
from headgate.service.dashboard.version_list import version_list

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


class RulebookPage:
    """Shows, checks, previews and publishes rulebooks."""

    def __init__(self, limiter: AsyncRuleLimiter, sources: DashboardSources, actions: OperatorActions) -> None:
        self._limiter, self._sources, self._actions = limiter, sources, actions
        self._previews = Previews(sources)
        self._large_checks = asyncio.Lock()

    async def show(self, page: PageRequest) -> Response:
        current = await self._current()
        notice, is_settled = await self._uncertain(page)
        response = await self._page(page, current, current.text, _number(current), notice)
        if is_settled:
            response[1].extend(encode_headers([set_cookie(COOKIE, "", 0, secure=page.is_secure)]))
        return response

    async def _current(self) -> schema.RulebookInfo:
        """Returns the rulebook in force, or the one that this process follows while the server does not answer."""
        try:
            info: schema.RulebookInfo = await self._actions.call_handler("rules")
            return info
        except EngineUnavailable:
            return self._sources.followed()

    async def _uncertain(self, page: PageRequest) -> tuple[Html | None, bool]:
        """Returns what became of a publication that got no reply, and whether that is known now."""
        sent = unpack(cookies_of(page.request, COOKIE))
        if sent is None or not page.view.is_operator or self._sources.availability.problem:
            return None, False
        versions = await self._sources.versions()
        if not versions:
            return None, False
        found, view = sent.find(versions, page.session.user), page.view
        if found is None:
            text = view.t(
                "Your publication that got no reply has not been made. Version {n} is in force.",
                n=versions[0].version,
            )
            # Redis may still have it before it: only a newer version keeps it out for good.
            is_superseded = versions[0].version > sent.base
            return html('<p class="warning" role="alert">{text}</p>', text=text), is_superseded
        with contextlib.suppress(HeadgateError):
            await self._actions.record_late_publication(found, sent.base, page.remote)
        text = view.t("Your publication that got no reply was made: it is version {n}.", n=found.version)
        return html('<p class="hint" role="alert">{text}</p>', text=text), True

    async def show_draft(self, page: PageRequest, current: schema.RulebookInfo, text: str, note: str) -> Response:
        """Shows the editor with a text that is not published yet, and a note for its publication."""
        view = replace(page.view, path=f"{ROOT}/rules", query={})
        base = 0 if current.version is None else current.version.version
        return await self._page(page._replace(view=view, form={"note": note}), current, text, base)

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
            history=version_list(view, await self._sources.versions(), base),
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
        validate = self._actions.call_handler("validate", None, text.encode(), format=kind)
        if len(text) > LARGE_TEXT_CHARS:
            validate = self._one_at_a_time(validate)
        result: schema.ValidationResult = await validate
        return result

    async def _one_at_a_time(self, check: Coroutine[Any, Any, Any]) -> Any:
        if self._large_checks.locked():
            check.close()
            raise InvalidRule("Another large rulebook is being checked: one at a time. Try again in a moment.")
        async with self._large_checks:
            return await check

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
        except EngineUnavailable as error:
            return await self._no_reply(page, error, text, number, note)
        except (HttpError, HeadgateError) as error:
            return await self._page(page, await self._current(), text, number, _problem(error), 400)
        settled = [set_cookie(COOKIE, "", 0, secure=page.is_secure)] if cookies_of(page.request, COOKIE) else []
        return redirect(f"{ROOT}/rules", settled)

    async def _no_reply(
        self, page: PageRequest, error: EngineUnavailable, text: str | None, base: int, note: str
    ) -> Response:
        """Keeps the text, and says whether nothing was published or that it is unknown."""
        view, current, is_uncertain = page.view, await self._current(), may_have_happened(error)
        view.problem = self._sources.availability.problem
        outcome = view.t("Nothing was published. Your text is kept below: publish it again when Redis answers.")
        if is_uncertain:
            outcome = view.t(
                "Whether it was published is unknown: Redis got it, and gave no reply. Your text is kept below. "
                "Open Rules again, in another tab, when Redis answers: it says there what became of it."
            )
        problem = html(
            '<div class="problem" role="alert"><p>{outcome}</p><p>{error}</p></div>',
            outcome=outcome,
            error=str(error),
        )
        response = await self._page(page, current, current.text if text is None else text, base, problem, 503)
        if is_uncertain:
            sent = UncertainPublication.of(base, page.session.user, note)
            response[1].extend(encode_headers([set_cookie(COOKIE, sent.packed, COOKIE_S, secure=page.is_secure)]))
        return response

    async def _conflict(self, page: PageRequest, text: str, base: int, message: str) -> Response:
        """Shows what somebody else published meanwhile, and keeps the text."""
        view, current = page.view, await self._current()
        newer = _number(current)
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
        base = whole_number("base", page.needed("base"))
        try:
            if not note:
                raise HttpError(400, page.view.t("Write a note: why do you change the rules?"))
            await self._actions.call_handler("rollback", None, body, page.actor, expected=base)
        except EngineUnavailable as error:
            return await self._no_reply(page, error, None, base, note)
        except (HttpError, HeadgateError) as error:
            current = await self._current()
            status = 409 if isinstance(error, VersionConflict) else 400
            return await self._page(page, current, current.text, _number(current), _problem(error), status)
        return redirect(f"{ROOT}/rules")

    async def version(self, page: PageRequest) -> Response:
        """Shows one version, and what it changed."""
        view, number = page.view, whole_number("number", page.needed("number"))
        stored = await self._actions.call_handler("version", {"version": str(number)})
        before, meaning = "", Html("")
        with contextlib.suppress(HeadgateError):
            earlier = await self._actions.call_handler("version", {"version": str(number - 1)})
            before = earlier.text
            meaning = changes_html(view, await asyncio.to_thread(changes_between, earlier, stored))
        info = stored.version
        body = html(
            '<div class="title"><p class="crumb"><a href="{root}/rules">{rules}</a></p><h1>{title}</h1>'
            '<p class="sub">{time} {author} · {note}</p></div>'
            '<section class="card"><h2>{changed}</h2>{meaning}{diff}</section>'
            '<section class="card"><h2>{text_label}</h2><pre class="text" tabindex="0">{text}</pre></section>',
            root=ROOT,
            rules=view.t("Rulebook"),
            title=view.t("Version {n}", n=number),
            time=time_tag(info.at),
            author=info.author,
            note=info.note,
            changed=view.t("What it changed"),
            meaning=meaning,
            diff=text_diff_html(view, before, stored.text),
            text_label=view.t("Its text"),
            text=stored.text,
        )
        return page_response(view.page(view.t("Version {n}", n=number), body, active="rules"))


def _number(current: schema.RulebookInfo) -> int:
    """Returns the number of the version in force, or of the one that this process follows."""
    return current.followed or 0 if current.version is None else current.version.version


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
