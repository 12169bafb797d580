"""A rule: charts over a minute, an hour and a day; live beside shadow and candidate; hot and most refused keys."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final
from urllib.parse import urlencode

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import CorruptState, EngineUnavailable, HeadgateError
from headgate.operations.rule_report import LIVE, MIN_CALLS, NOT_ENOUGH_DATA
from headgate.rules.find_rule import key_format
from headgate.rules.rule import Rule
from headgate.service.admin import schema
from headgate.service.asgi import HttpError, Response
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.key_stories import NO_STORY, KeyStory, recent_stories
from headgate.service.dashboard.number_format import ago_s, instant_text, share_text, span_text
from headgate.service.dashboard.operator_actions import OperatorActions
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.request import json_response, page_response, redirect
from headgate.service.dashboard.rule_text import limit_texts, mode_badges
from headgate.service.dashboard.stages_card import stage_numbers, stages_card
from headgate.service.staged_enforcement import StagedEnforcement
from headgate.telemetry.decision_counts import DecisionCounts

SHOWN_KEYS: Final = 10
STORY_S: Final = 60  # of recent records, for the keys of a rule; fewer where so many calls are recorded
STORY_RECORDS: Final = 4000
KEYS_CACHE_S: Final = 2.0
SPANS: Final = {"minute": (1, 60), "hour": (60, 60), "day": (300, 288)}  # seconds of a point, and points

_PAGE = """<div class="title"><h1>{name}{badges}</h1><p class="sub">{limits}</p></div>{problem}
<section class="card chart-card"><div class="card-head"><h2>{verdicts}</h2>
<div class="spans" role="group" aria-label="{span_label}">{spans}</div></div>
<div class="chart tall" id="verdicts" role="img" aria-label="{verdicts}"></div>
{trial}</section>
{report}{stages}
<section class="card"><div class="card-head"><h2>{keys_title}</h2>
<form class="inline" method="get" action="{root}/key"><input type="hidden" name="rule" value="{name}">
<label class="hidden" for="key">{key_label}</label>
<input id="key" name="key" required placeholder="{key_format}">
<button class="button" type="submit">{look}</button></form>
</div><div id="keys">{keys}</div></section>
<section class="card"><h2>{overrides_title}</h2>{overrides}</section>"""

_TRIAL = '<h2>{title}</h2><div class="chart" id="trial" role="img" aria-label="{title}"></div>'

_KEYS = """<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table class="keys">
<thead><tr><th scope="col">{key}</th><th scope="col" class="n">{calls}</th>
<th scope="col" class="n">{refused}</th><th scope="col" class="n">{trial}</th>
<th scope="col" class="n">{remaining}</th><th scope="col">{since}</th><th scope="col">{what}</th></tr></thead>
<tbody>{rows}</tbody></table></div>"""


class RulePage:
    """Shows one rule."""

    def __init__(
        self,
        limiter: AsyncRuleLimiter,
        sources: DashboardSources,
        actions: OperatorActions,
        staged: StagedEnforcement,
    ) -> None:
        self._limiter, self._sources, self._actions, self._staged = limiter, sources, actions, staged
        self._keys_read: dict[str, tuple[float, list[dict[str, Any]]]] = {}

    async def change_stages(self, page: PageRequest) -> Response:
        """Starts or stops staged enforcement."""
        name = page.needed("name")
        try:
            self._sources.availability.check()
            actor = page.actor
            if page.path["action"] == "stop":
                await self._staged.stop(name, actor.user, actor.remote)
            else:
                hold_s, max_refused = stage_numbers(page.form)
                await self._staged.start(name, hold_s, max_refused, actor.user, actor.remote, actor.reason)
        except HeadgateError as error:
            return await self.show(page, str(error), 503 if isinstance(error, EngineUnavailable) else 400)
        return redirect(f"{ROOT}/rule?{urlencode({'name': name})}")

    async def show(self, page: PageRequest, problem: str = "", status: int = 200) -> Response:
        view, name = page.view, page.needed("name")
        rule = self._limiter.rulebook.rule(name)
        span = page.query.get("span", "minute")
        span = span if span in SPANS else "minute"
        series = await self._series(name, span)
        words = ("Passed", "Delayed", "Refused", "Shadow", "Candidate", "Version")
        data = {"rule": name, "span": span, "texts": {word: view.t(word) for word in words}, "series": series}
        body = html(
            _PAGE,
            root=ROOT,
            name=name,
            badges=mode_badges(view, rule),
            limits=view.t("This rule is not in the rulebook any more.") if rule is None else limit_texts(rule),
            verdicts=view.t("Calls per second"),
            trial=html(_TRIAL, title=view.t("Refused: live beside shadow and candidate"))
            if _has_trial(rule, series)
            else None,
            span_label=view.t("Span"),
            spans=join(
                html(
                    '<button type="button" class="tool" data-span="{span}" aria-pressed="{pressed}">{text}'
                    "</button>",
                    span=each,
                    pressed="true" if each == span else "false",
                    text=view.t(text),
                )
                for each, text in (("minute", "1 minute"), ("hour", "1 hour"), ("day", "1 day"))
            ),
            problem=html('<p class="problem" role="alert">{text}</p>', text=problem) if problem else None,
            report=await self._report(view, name),
            stages=await self._stages(page, rule),
            keys_title=view.t("Hot and most refused keys of the last minute"),
            keys=await self._keys_table(view, name),
            key_label=view.t("A key of this rule"),
            key_format="" if rule is None else key_format(rule),
            look=view.t("Look at it"),
            overrides_title=view.t("Keys with a limit of their own"),
            overrides=await self._overrides(view, rule),
        )
        scripts = ("charts.js", "rule.js")
        return page_response(view.page(name, body, active="", scripts=scripts, data=data), status)

    async def stages(self, page: PageRequest) -> Response:
        """Returns the card of staged enforcement, for the script."""
        rule = self._limiter.rulebook.rule(page.needed("name"))
        return json_response({"html": await self._stages(page, rule)})

    async def _stages(self, page: PageRequest, rule: Rule | None) -> Html:
        if self._sources.availability.problem:
            return Html("")
        can_publish = self._sources.can_publish
        return await stages_card(page.view, rule, self._staged, can_publish=can_publish, typed=page.form)

    async def series(self, page: PageRequest) -> Response:
        """Returns the points of the charts."""
        span = page.query.get("span", "minute")
        if span not in SPANS:
            raise HttpError(400, f"span is one of {', '.join(SPANS)}.")
        return json_response(await self._series(page.needed("name"), span))

    async def keys(self, page: PageRequest) -> Response:
        """Returns the table of keys, for the script."""
        return json_response({"html": await self._keys_table(page.view, page.needed("name"))})

    async def _series(self, rule: str, span: str) -> dict[str, Any]:
        step_s, points = SPANS[span]
        units = points * step_s // 60
        seconds, minutes = (points, None) if span == "minute" else (None, units)
        try:
            counts = await asyncio.to_thread(self._sources.counts().series, rule, seconds=seconds, minutes=minutes)
        except (EngineUnavailable, CorruptState) as error:
            return {"problem": str(error)}
        now_s = time.time()
        last = int(now_s) // step_s * step_s
        rows = _points(counts, step_s // 60, int(now_s) // 60) if span == "day" else counts
        times = [last - step_s * (len(rows) - 1 - index) for index in range(len(rows))]
        # A rate is that of the part of a point that was counted; a point of which little was counted is left out.
        spans = [min(float(step_s), now_s - self._sources.lag_s - at) for at in times]
        while spans and spans[-1] < (step_s if span == "minute" else step_s / 6):
            rows, times, spans = rows[:-1], times[:-1], spans[:-1]

        def column(*names: str) -> list[float]:
            sums = (sum(getattr(row, name) for name in names) for row in rows)
            return [round(counted / span, 3) for counted, span in zip(sums, spans, strict=True)]

        return {
            "t": times,
            "passed": column("allowed", "shadow_allowed", "shadow_refused"),
            "delayed": column("delayed"),
            "refused": column("refused", "shed"),
            "shadow": column("shadow_refused"),
            "candidate": column("candidate_refused"),
            "marks": [mark for mark in await self._sources.marks() if mark["at"] >= last - step_s * points],
        }

    async def _keys_table(self, view: View, rule: str) -> Html:
        try:
            rows = await self._key_rows(rule)
        except (EngineUnavailable, CorruptState) as error:
            return html('<p class="problem">{text}</p>', text=str(error))
        if not rows:
            return html('<p class="empty">{text}</p>', text=view.t("No key called in the last minute."))
        return html(
            _KEYS,
            title=view.t("Keys"),
            key=view.t("Key"),
            calls=view.t("Calls"),
            refused=view.t("Refused"),
            trial=view.t("Trial"),
            remaining=view.t("Remaining"),
            since=view.t("Refused since"),
            what=view.t("Calls what"),
            rows=join(_key_row(view, rule, row) for row in rows),
        )

    async def _key_rows(self, rule: str) -> list[dict[str, Any]]:
        """Returns the keys, those that are refused most first; read at most every KEYS_CACHE_S for all clients."""
        read_at, rows = self._keys_read.get(rule, (float("-inf"), []))
        if time.monotonic() - read_at < KEYS_CACHE_S:
            return rows
        calls, refused, shadow, candidate, stories_by_key = await asyncio.to_thread(self._read_keys, rule)
        keys = dict.fromkeys((*refused, *shadow, *candidate, *calls))
        rows = []
        for key in list(keys)[: 2 * SHOWN_KEYS]:
            row = {"key": key, "calls": calls.get(key, 0), "refused": refused.get(key, 0)}
            row["trial"] = max(shadow.get(key, 0), candidate.get(key, 0))
            row["calls"] = max(row["calls"], row["refused"], row["trial"])
            row["story"] = stories_by_key.get(key, NO_STORY)
            row["remaining"] = await self.remaining(rule, key)
            rows.append(row)
        rows.sort(key=lambda row: (-row["refused"], -row["trial"], -row["calls"]))
        if len(self._keys_read) > 200:
            self._keys_read.clear()
        self._keys_read[rule] = time.monotonic(), rows
        return rows

    def _read_keys(self, rule: str) -> tuple[Any, ...]:
        reader = self._sources.counts()
        kinds = ("calls", "refused", "shadow_refused", "candidate_refused")
        hot = [dict(reader.hot_keys(rule, kind, SHOWN_KEYS)) for kind in kinds]
        return (*hot, recent_stories(self._sources.records, rule, STORY_S, STORY_RECORDS))

    async def remaining(self, rule: str, key: str) -> str:
        """Returns what is left of each limit of a key, and of how much; a dash if that is not known."""
        try:
            peeked = await self._actions.call_handler(
                "peek", None, schema.AdminPeekRequest(rule=rule, key=key, cost=0)
            )
        except HeadgateError:
            return "-"
        return ", ".join(f"{each.remaining:,} ({each.limit})" for each in peeked.limits)

    async def _report(self, view: View, rule: str) -> Html:
        """Returns what a shadow or a candidate would do, and whether it is safe to enforce."""
        try:
            report = await self._actions.call_handler("rule_report", {"rule": rule})
        except HeadgateError:
            return Html("")
        if all(row.safe is None for row in report.rows):
            return Html("")
        items = join(
            html(
                '<li><b>{kind}</b> {refused} {of} {calls} <span class="state {level}">{safe}</span> {why}</li>',
                kind=view.t("in force" if row.kind == LIVE else row.kind),
                refused=f"{row.refused:,}",
                of=view.t("refused of"),
                calls=f"{row.calls:,}",
                level={"yes": "good", "no": "bad"}.get(row.safe or "", "idle"),
                safe="" if row.safe is None else view.t("safe to enforce: {answer}", answer=view.t(row.safe)),
                why=_why(view, row, report.max_refused),
            )
            for row in report.rows
        )
        title = view.t("Is it safe to enforce? The last {hours} hours", hours=report.hours)
        return html(
            '<section class="card"><h2>{title}</h2><ul class="plain">{items}</ul></section>',
            title=title,
            items=items,
        )

    async def _overrides(self, view: View, rule: Rule | None) -> Html:
        if rule is None or not rule.overrides:
            hint = view.t("This rule takes no overrides: write “overrides: true” in it to exempt or block keys.")
            return html('<p class="empty">{hint}</p>', hint=hint)
        try:
            listed = await self._actions.call_handler("overrides", {"rule": rule.name}, query={"top": "50"})
        except HeadgateError as error:
            return html('<p class="problem">{text}</p>', text=str(error))
        if not listed.overrides:
            return html('<p class="empty">{text}</p>', text=view.t("No key has a limit of its own."))
        return html(
            '<ul class="plain overrides">{items}</ul>',
            items=join(
                html(
                    '<li><a href="{link}">{key}</a> <code>{limits}</code></li>',
                    link=key_link(rule.name, each.key),
                    key=each.key,
                    limits=each.limits,
                )
                for each in listed.overrides
            ),
        )


def _why(view: View, row: schema.RuleReportRow, max_refused: float) -> str:
    """Returns why a trial is safe to enforce, or not."""
    if row.safe is None:
        return ""
    if row.safe == NOT_ENOUGH_DATA:
        return view.t("{n} calls were seen, and {needed} are needed", n=f"{row.calls:,}", needed=f"{MIN_CALLS:,}")
    keys = row.keys or 0
    return view.t(
        "it refuses {share} of {keys} keys; at most {most} may be refused",
        share=f"{min(1.0, row.keys_refused / keys) if keys else 0.0:.2%}",
        keys=f"{keys:,}",
        most=f"{max_refused:.2%}",
    )


def _has_trial(rule: Rule | None, series: dict[str, Any]) -> bool:
    """Returns whether a rule has a shadow or a candidate, or had one in this time."""
    if rule is not None and (rule.mode.shadow or rule.candidate is not None):
        return True
    return any(map(any, (series.get("shadow", ()), series.get("candidate", ()))))


def _points(minutes: list[DecisionCounts], size: int, last_minute: int) -> list[DecisionCounts]:
    """Returns the sums of so many minutes each, which begin at multiples of `size`; the last is not complete.

    >>> [each.allowed for each in _points([DecisionCounts(allowed=n) for n in (1, 2, 3, 4, 5, 6)], 3, 100)]
    [9, 11]
    """
    end = len(minutes) + size - 1 - last_minute % size
    first = end % size
    return [_sum(minutes[start : start + size]) for start in range(first, len(minutes), size)]


def _sum(rows: list[DecisionCounts]) -> DecisionCounts:
    total = DecisionCounts()
    for row in rows:
        total = total.plus(row)
    return total


def _key_row(view: View, rule: str, row: dict[str, Any]) -> Html:
    story: KeyStory = row["story"]
    since = ""
    if story.refused_since_us is not None and row["refused"]:
        span = ago_s(story.refused_since_us / 1e6)
        since = span_text(span) if span < STORY_S - 2 else view.t("longer than {span}", span=span_text(STORY_S))
    return html(
        '<tr><th scope="row"><a href="{link}">{key}</a></th><td class="n">{calls}</td>'
        '<td class="n refused{alarm}">{refused} <small>{share}</small></td><td class="n shadow">{trial}</td>'
        '<td class="n">{remaining}</td><td>{since}</td><td class="what">{what}</td></tr>',
        link=key_link(rule, row["key"]),
        key=row["key"],
        calls=f"{row['calls']:,}",
        refused=f"{row['refused']:,}",
        share=share_text(row["refused"], row["calls"]),
        alarm=" alarm" if row["refused"] else "",
        trial=f"{row['trial']:,}",
        remaining=row["remaining"],
        since=since,
        what=", ".join(story.calls),
    )


def key_link(rule: str, key: str) -> str:
    """Returns the path of a key's page."""
    return f"{ROOT}/key?{urlencode({'rule': rule, 'key': key})}"


def time_tag(seconds: float) -> Html:
    """Returns an instant, which scripts show in the browser's zone."""
    return html(
        '<time datetime="{iso}">{text}</time>',
        iso=instant_text(seconds).replace(" ", "T"),
        text=instant_text(seconds),
    )
