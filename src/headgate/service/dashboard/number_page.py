"""Find a number: uploads a log, chooses a limit from it, and adds it to the rulebook as a shadow rule.

The response to an upload is a stream: lines of JSON that say how far the work is, and last the result. So no
worker keeps anything, and a page that is closed ends the work. One log is read at a time in a service.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import IO, Any, Final

from headgate.errors import HeadgateError, InvalidLog, InvalidRule
from headgate.limit_syntax import parse
from headgate.operations.append_rule import with_appended_rule
from headgate.rules.rule import Rule
from headgate.service.admin.audit_log import ChangeLog
from headgate.service.asgi import HttpError, Response, StreamedResponse, encode_headers
from headgate.service.dashboard.background_job import JobBounds, job_events
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.dashboard.html import html, join
from headgate.service.dashboard.job_process import CHOOSING, COUNTING, READING, SUGGEST
from headgate.service.dashboard.number_result import NUMBER_TEXTS, result_html
from headgate.service.dashboard.operator_actions import OperatorActions
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.request import SAFE_FIELDS, json_response, page_response
from headgate.service.dashboard.rulebook_page import RulebookPage
from headgate.service.dashboard.upload import MAX_UPLOAD_BYTES, receive_file
from headgate.service.dashboard.upload_lock import UploadLock
from headgate.traffic.formats.field_names import attribute_name
from headgate.traffic.log_summary import escape_unprintable
from headgate.traffic.reader import ReadOptions
from headgate.traffic.suggest_and_replay import parse_dimensions
from headgate.traffic.suggested_rulebook import shadow_rule
from headgate.traffic.where_condition import parse_where

BOUNDS: Final = JobBounds(cpu_s=600, seconds=3600.0, max_bytes=2_000_000_000)
PHASE_TEXTS: Final = {
    READING: "Reading the log",
    CHOOSING: "Choosing a limit",
    COUNTING: "Counting who would be refused",
}
SCRIPT_TEXTS: Final = ("Uploading", "cancelled", "no connection", "A log may have at most 100 MB.")
_MAX_OPTION_CHARS: Final = 500
_MAX_NAME_CHARS: Final = 100
_log = logging.getLogger("headgate.service")

_PAGE = """<div class="title"><h1>{title}</h1><p class="sub">{intro}</p></div>
{problem}
<form id="upload" class="card" method="post" action="{root}/number">{form}
<div class="row"><div><label for="log">{log_label}</label>
<input id="log" name="log" type="file" required aria-describedby="log-hint"></div>
<div><label for="by">{by_label}</label>
<input id="by" name="by" value="address" list="keys" autocomplete="off" required>
<datalist id="keys"><option>address</option><option>user</option><option>address/24</option><option>all</option>
</datalist></div></div>
<p class="hint" id="log-hint">{hint}</p>
<details><summary>{more}</summary><div class="row">{options}</div></details>
<div class="buttons"><button class="button primary" id="start" type="submit">{start}</button>
<button class="button" id="cancel" type="button" hidden>{cancel}</button></div>
<div id="working" hidden><p id="phase" role="status"></p><progress id="progress" max="1" aria-labelledby="phase">
</progress></div>
<div id="upload-problem" role="alert"></div></form>
<div id="result"></div>"""

_OPTION = """<div><label for="{name}">{label}</label>
<input id="{name}" name="{name}" placeholder="{example}" autocomplete="off"></div>"""


class NumberPage:
    """Reads uploaded logs, and shows the limits that fit them."""

    def __init__(
        self, sources: DashboardSources, actions: OperatorActions, book: RulebookPage, lock: UploadLock
    ) -> None:
        self._actions, self._book = actions, book
        self._changes = ChangeLog(sources.trail)
        self._lock = lock
        self._tasks: set[asyncio.Task[None]] = set()

    async def show(self, page: PageRequest, problem: str = "", status: int = 200) -> Response:
        view = _view_of_operator(page)
        options = (
            ("where", view.t("Only these calls"), "path: /api/**"),
            ("refuse", view.t("Keys that may be refused"), "0 %"),
            ("format", view.t("Format of the lines"), '$remote_addr - [$time_local] "$request" $status'),
            ("fields", view.t("Fields of other names"), "time=ts address=client"),
            ("zone", view.t("Time zone of times without one"), "UTC"),
        )
        body = html(
            _PAGE,
            root=ROOT,
            title=view.t("Find a number"),
            intro=view.t(
                "Upload an access log: it says how much ordinary clients need, and whom each limit would refuse."
            ),
            problem=html('<p class="problem" role="alert">{text}</p>', text=problem) if problem else None,
            form=view.form_field(),
            log_label=view.t("An access log, up to 100 MB"),
            by_label=view.t("Whose calls count together"),
            hint=view.t(
                "As a text, gzip or zstd; its format is detected. It is read by this service alone, and deleted "
                "as soon as it was read."
            ),
            more=view.t("More options"),
            options=join(
                html(_OPTION, name=name, label=label, example=example) for name, label, example in options
            ),
            start=view.t("Upload and analyse"),
            cancel=view.t("Cancel"),
        )
        data = {
            "maxBytes": MAX_UPLOAD_BYTES,
            "texts": {text: view.t(text) for text in (*SCRIPT_TEXTS, *NUMBER_TEXTS)},
        }
        scripts = ("charts.js", "frontier.js", "number.js")
        return page_response(
            view.page(view.t("Find a number"), body, active="number", scripts=scripts, data=data), status
        )

    async def check(self, page: PageRequest) -> Response:
        """Says what is wrong with the options of an upload, before anything is uploaded; for the script."""
        try:
            await asyncio.to_thread(_job_of, page.form)
            if not _try(self._lock.is_free):
                raise _busy()
        except (HttpError, HeadgateError) as error:
            return json_response({"error": str(error)})
        return json_response({})

    async def upload(self, page: PageRequest) -> StreamedResponse:
        """Receives a log, and streams how its analysis goes; for the script."""
        view = _view_of_operator(page)
        job = await asyncio.to_thread(_job_of, page.query)
        if not _try(self._lock.acquire):  # released when the analysis has ended
            raise _busy()
        try:
            file = await receive_file(page.request)
        except BaseException:
            self._lock.release()
            raise
        size = file.seek(0, 2)
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        task = asyncio.create_task(_analyse(job, file, events))
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._lock.release()
            file.close()
            events.put_nowait(None)

        task.add_done_callback(end)
        actor = page.actor
        await self._changes.record("log uploaded", actor.user, actor.remote, log=job["name"], bytes=size)
        headers = [("content-type", "application/x-ndjson"), ("cache-control", "no-store"), *SAFE_FIELDS]
        return StreamedResponse(200, encode_headers(headers), _lines(view, job, events, task))

    async def save(self, page: PageRequest) -> Response:
        """Opens the editor with the chosen limit as one more rule, in shadow mode; nothing is published yet."""
        try:
            rule = await asyncio.to_thread(_rule_of, page.form)
            current = await self._actions.call_handler("rules")
            text = await asyncio.to_thread(with_appended_rule, current.text, current.format, rule)
        except HeadgateError as error:
            return await self.show(page, str(error), 400)
        name = escape_unprintable(page.form.get("log", "")[:_MAX_NAME_CHARS])
        note = page.view.t("{limit} in shadow, from {log}", limit=rule.limit.otherwise[0].text, log=name)
        return await self._book.show_draft(page, current, text, note)

    async def close(self) -> None:
        """Ends what is being analysed."""
        for task in self._tasks:
            if not task.cancelling():  # a second time would cancel its cleanup
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _busy() -> HttpError:
    return HttpError(409, "Another log is being read: one at a time. Try again in a moment.")


def _try(lock: Callable[[], bool]) -> bool:
    try:
        return lock()
    except OSError as error:
        folder, reason = tempfile.gettempdir(), os.strerror(error.errno or 0)
        text = f"No file can be made in {folder}: {reason}. Make room there, or name another folder by TMPDIR."
        raise HttpError(507, text) from None


def _view_of_operator(page: PageRequest) -> View:
    if not page.view.is_operator:
        raise HttpError(403, page.view.t("Only operators upload logs."))
    return page.view


async def _analyse(job: dict[str, Any], file: IO[bytes], events: asyncio.Queue[dict[str, Any] | None]) -> None:
    """Puts what the analysis reports into a queue."""
    try:
        async with aclosing(job_events(job, BOUNDS, file)) as reported:
            async for event in reported:
                events.put_nowait(event)
    except OSError as error:
        _log.error("the process that reads a log cannot be started: %s", error)
        events.put_nowait({"error": f"The process that reads the log cannot be started: {error.strerror}."})


async def _lines(
    view: View,
    job: dict[str, Any],
    events: asyncio.Queue[dict[str, Any] | None],
    task: asyncio.Task[None],
) -> AsyncIterator[bytes]:
    """Yields what an analysis reports, in the user's language; ends it if the client is gone."""
    try:
        while (event := await events.get()) is not None:
            if "result" in event:
                event = {"html": result_html(view, event["result"], job), "grid": event["result"]["grid"]}
            elif "phase" in event:
                event["phase"] = view.t(PHASE_TEXTS[event["phase"]])
            yield (json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n").encode("utf-8", "replace")
    finally:
        task.cancel()


def _job_of(options: dict[str, str]) -> dict[str, Any]:
    """Returns the job of an upload; raises HeadgateError for an option that cannot be used."""
    for name, value in options.items():
        if len(value) > _MAX_OPTION_CHARS and name != "form":
            raise InvalidRule(f"{name} may have {_MAX_OPTION_CHARS} characters.")
    job = {name: options.get(name, "").strip() for name in ("by", "where", "format", "zone")}
    job["by"], job["zone"] = job["by"] or "address", job["zone"] or "UTC"
    parse_dimensions(job["by"])
    if job["where"]:
        parse_where(job["where"])
    ReadOptions(zone=job["zone"]).timezone()
    name = escape_unprintable(options.get("name", "").strip()[:_MAX_NAME_CHARS]) or "the log"
    fields = dict(map(_field, options.get("fields", "").split()))
    return {"job": SUGGEST, "name": name, "fields": fields, "refuse_keys": _refuse_keys(options), **job}


def _field(text: str) -> tuple[str, str]:
    name, equals, field = text.partition("=")
    if not name or not equals or not field:
        raise InvalidLog(f'"{text}" does not say which field is what: write NAME=FIELD, such as time=ts.')
    attribute_name(name)
    return name, field


def _refuse_keys(options: dict[str, str]) -> float:
    text = options.get("refuse", "").strip() or "0"
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise InvalidRule(f'"{text}" is no percentage from 0 to below 100, such as 1 %.')
    return share


def _rule_of(form: dict[str, str]) -> Rule:
    """Returns the rule of a chosen limit; raises HeadgateError."""
    where = form.get("where", "").strip()
    by = parse_dimensions(form.get("by") or "address")
    return shadow_rule(parse(form.get("limit", "")), by, parse_where(where) if where else None)
