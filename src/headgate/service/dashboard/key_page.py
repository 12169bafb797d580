"""A key of a rule: what is left, its story, and what an operator can do: override, block, exempt, reset, undo."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from typing import Final

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import EngineUnavailable, HeadgateError
from headgate.limit_syntax import parse_span
from headgate.operations.audit_trail import AuditEntry
from headgate.service.admin import schema
from headgate.service.admin.request import NotFound
from headgate.service.asgi import HttpError, Response
from headgate.service.dashboard.audit_page import describe_change
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.key_stories import NO_STORY, KeyStory, key_story
from headgate.service.dashboard.number_format import span_text
from headgate.service.dashboard.operator_actions import HOUR_S, OperatorActions, can_undo
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.request import json_response, page_response, redirect
from headgate.service.dashboard.rule_page import key_link, time_tag
from headgate.service.dashboard.rule_text import limit_texts
from headgate.service.dashboard.translation import ENGLISH
from headgate.telemetry.key_estimates import CALLS, REFUSED
from headgate.telemetry.recent_records import KEPT_S

SHOWN_CHANGES: Final = 10
HOT_KEYS: Final = 200  # whose calls of the last minute are known
NEVER: Final = "0"
SPANS: Final = ((str(HOUR_S), "for an hour"), ("86400", "for a day"), (NEVER, "until it is undone"))

_PAGE = """<div class="title"><p class="crumb"><a href="{rule_link}">{rule}</a></p><h1>{key}</h1>
<p class="sub">{limits}</p></div>
{problem}
<div class="columns"><section class="card"><h2>{now}</h2><dl class="facts" id="facts">{facts}</dl>
<dl class="facts">{story}</dl></section>
<section class="card"><h2>{actions_title}</h2>{actions}</section></div>
<section class="card"><h2>{changes_title}</h2>{changes}</section>"""

_ACTIONS = """<form class="actions" method="post" action="{root}/key/override">{form}
<input type="hidden" name="rule" value="{rule}"><input type="hidden" name="key" value="{key}">
<label for="reason">{reason_label}</label>
<input id="reason" name="reason" value="{reason}" required maxlength="300" autocomplete="off">
<label for="limits">{limits_label}</label><input id="limits" name="limits" value="{limits}" maxlength="300">
<label for="ttl">{ttl_label}</label><select id="ttl" name="ttl">{spans}</select>
<div class="buttons"><button class="button primary" type="submit">{override}</button>
<button class="button" type="submit" formaction="{root}/key/exempt">{exempt}</button>
<button class="button danger" type="submit" formaction="{root}/key/block">{block}</button>
<button class="button" type="submit" formaction="{root}/key/reset">{reset}</button>
{unset}</div></form>"""

_UNSET = '<button class="button" type="submit" formaction="{root}/key/unset">{text}</button>'

_UNDO = """<form method="post" action="{root}/undo" class="undo">{form}<input type="hidden" name="id" value="{id}">
<input type="hidden" name="rule" value="{rule}"><input type="hidden" name="key" value="{key}">
<button class="button small" type="submit">{undo}</button></form>"""


class KeyPage:
    """Shows a key, and changes it."""

    def __init__(self, limiter: AsyncRuleLimiter, sources: DashboardSources, actions: OperatorActions) -> None:
        self._limiter, self._sources, self._actions = limiter, sources, actions

    async def show(self, page: PageRequest, problem: str = "", status: int = 200) -> Response:
        view, rule_name, key = page.view, page.needed("rule"), page.needed("key")
        rule = self._limiter.rulebook.rule(rule_name)
        if rule is None:
            raise HttpError(404, f'There is no rule "{rule_name}".')
        story = await asyncio.to_thread(self._story, rule_name, key)
        override = None
        try:
            override = (await self._actions.call_handler("override", {"rule": rule_name, "key": key})).limits
        except NotFound:
            pass
        except HeadgateError as error:
            problem = problem or str(error)
        changes, undone, unread = await self._changes(rule_name, key)
        facts, passes = await self._live_facts(view, rule_name, key)
        data = {"rule": rule_name, "key": key}
        body = html(
            _PAGE,
            rule=rule_name,
            rule_link=f"{ROOT}/rule?name={rule_name}",
            key=key,
            limits=limit_texts(rule),
            problem=html('<p class="problem" role="alert">{text}</p>', text=problem or unread)
            if problem or unread
            else None,
            now=view.t("Now"),
            facts=facts,
            story=self._story_facts(view, override, story, passes=passes),
            actions_title=view.t("What you can do"),
            actions=self._action_form(page, rule_name, key, override, takes_overrides=rule.overrides),
            changes_title=view.t("Changes of this key"),
            changes=_changes(view, changes, undone),
        )
        return page_response(view.page(key, body, active="", scripts=("key.js",), data=data), status)

    async def act(self, page: PageRequest) -> Response:
        """Changes the key; shows what is wrong beside the form."""
        rule, key = page.needed("rule"), page.needed("key")
        try:
            key, actor = page.key_to_change(), page.actor
            if not actor.reason:
                raise HttpError(400, page.view.t("Say why, for those who read the audit trail."))
            ttl_s = _ttl_s(page.form.get("ttl", str(HOUR_S)))
            match page.path["action"]:
                case "override":
                    await self._actions.override(rule, key, page.form.get("limits", ""), ttl_s, actor)
                case "block":
                    await self._actions.block(rule, key, ttl_s, actor)
                case "exempt":
                    await self._actions.exempt(rule, key, ttl_s, actor)
                case "unset":
                    await self._actions.unset_override(rule, key, actor)
                case _:
                    await self._actions.reset(rule, key, actor)
        except (HttpError, HeadgateError) as error:
            return await self.show(page, str(error), 503 if isinstance(error, EngineUnavailable) else 400)
        return redirect(key_link(rule, key))

    async def undo(self, page: PageRequest) -> Response:
        """Undoes one of the changes of a key."""
        rule, key, identity = page.needed("rule"), page.needed("key"), page.needed("id")
        entry = next((each for each in await self._sources.changes() if each.id == identity), None)
        try:
            if entry is None or (entry.details.get("rule"), entry.details.get("key")) != (rule, key):
                raise HttpError(404, page.view.t("This change is not kept any more."))
            described = describe_change(replace(page.view, language=ENGLISH), entry)  # for all who read the trail
            actor = page.actor._replace(reason=f"undo of: {described}"[:300])
            await self._actions.undo(entry, actor)
        except (HttpError, HeadgateError) as error:
            return await self.show(page, str(error), 400)
        return redirect(key_link(rule, key))

    async def facts(self, page: PageRequest) -> Response:
        """Returns what is known of the key now, for the script; its story is read when the page is loaded."""
        view, rule_name, key = page.view, page.needed("rule"), page.needed("key")
        facts, _ = await self._live_facts(view, rule_name, key)
        return json_response({"html": facts})

    def _story(self, rule: str, key: str) -> KeyStory:
        try:
            return key_story(self._sources.records, rule, key, KEPT_S)
        except HeadgateError:
            return NO_STORY

    async def _live_facts(self, view: View, rule: str, key: str) -> tuple[Html, bool]:
        """Returns what is left to the key, how often it called in the last minute, and whether it passes."""
        facts: list[tuple[str, str | Html]] = []
        passes = False
        try:
            peeked = await self._actions.call_handler(
                "peek", None, schema.AdminPeekRequest(rule=rule, key=key, cost=1)
            )
            passes = peeked.allowed
            level, answer = ("good", view.t("passes")) if passes else ("bad", view.t("is refused"))
            state = html('<span class="state {level}">{answer}</span>', level=level, answer=answer)
            facts.append((view.t("Its next call"), state))
            for each in peeked.limits:
                facts.append((view.t("Remaining"), f"{each.remaining:,} ({each.limit})"))
                if each.retry_after:
                    facts.append((view.t("Passes again in"), span_text(each.retry_after)))
        except HeadgateError as error:
            facts.append((view.t("Remaining"), str(error)))
        with suppress(HeadgateError):
            calls, refused = await asyncio.to_thread(self._last_minute, rule, key)
            if calls is not None:
                text = view.t("{calls} calls, {refused} refused", calls=f"{calls:,}", refused=f"{refused:,}")
                facts.append((view.t("Last minute"), text))
        return _definitions(facts), passes

    def _last_minute(self, rule: str, key: str) -> tuple[int | None, int]:
        """Returns the calls of a key and how many were refused; None if it is not among the hot ones."""
        reader = self._sources.counts()
        calls, refused = (dict(reader.hot_keys(rule, kind, HOT_KEYS)) for kind in (CALLS, REFUSED))
        if key not in calls and key not in refused:
            return None, 0
        return max(calls.get(key, 0), refused.get(key, 0)), refused.get(key, 0)

    def _story_facts(self, view: View, override: str | None, story: KeyStory, *, passes: bool) -> Html:
        facts: list[tuple[str, str | Html]] = []
        if override is not None:
            facts.append((view.t("Its own limit"), html("<code>{limits}</code>", limits=override)))
        if story.refused_since_us is not None:
            label = view.t("Refused now and then since") if passes else view.t("Refused since")
            since = html(
                "{time} {earlier}",
                time=time_tag(story.refused_since_us / 1e6),
                earlier=view.t("or earlier") if story.is_cut else "",
            )
            facts.append((label, since))
        if story.calls:
            facts.append((view.t("Calls what"), ", ".join(story.calls)))
        return _definitions(facts)

    def _action_form(
        self, page: PageRequest, rule: str, key: str, override: str | None, *, takes_overrides: bool
    ) -> Html:
        view = page.view
        if not view.is_operator:
            return html('<p class="empty">{text}</p>', text=view.t("You may look, and not change anything."))
        hint = Html("")
        if not takes_overrides:
            text = view.t("This rule takes no overrides: write “overrides: true” in it to exempt or block keys.")
            hint = html('<p class="hint">{text}</p>', text=text)
        form = html(
            _ACTIONS,
            root=ROOT,
            form=view.form_field(),
            rule=rule,
            key=key,
            reason_label=view.t("Why? This is for those who read the audit trail"),
            reason=page.form.get("reason", ""),
            limits_label=view.t("A limit of its own"),
            limits=page.form.get("limits") or override or self._usual_limit(rule),
            ttl_label=view.t("How long"),
            spans=join(
                html(
                    '<option value="{value}"{selected}>{text}</option>',
                    value=value,
                    selected=Html(" selected") if value == page.form.get("ttl") else None,
                    text=view.t(text),
                )
                for value, text in SPANS
            ),
            override=view.t("Override"),
            exempt=view.t("Exempt"),
            block=view.t("Block"),
            reset=view.t("Reset counters"),
            unset=html(_UNSET, root=ROOT, text=view.t("Remove its own limit")) if override is not None else None,
        )
        return join([hint, form])

    def _usual_limit(self, name: str) -> str:
        rule = self._limiter.rulebook.rule(name)
        return "" if rule is None else "; ".join(limit.text for limit in rule.limit.otherwise)

    async def _changes(self, rule: str, key: str) -> tuple[list[AuditEntry], set[object], str]:
        """Returns the latest changes of the key, those that were undone, and why they cannot be read."""
        try:
            changes = await self._sources.changes()
        except HeadgateError as error:
            return [], set(), str(error)
        ours = [each for each in changes if (each.details.get("rule"), each.details.get("key")) == (rule, key)]
        return ours[:SHOWN_CHANGES], {each.details.get("undoes") for each in ours}, ""


def _definitions(facts: list[tuple[str, str | Html]]) -> Html:
    return join(html("<dt>{name}</dt><dd>{value}</dd>", name=name, value=value) for name, value in facts)


def _ttl_s(text: str) -> float | None:
    """Returns how long an override is to hold; None: until it is removed."""
    if text == NEVER:
        return None
    return float(text) if re.fullmatch(r"[0-9]{1,9}", text) else parse_span(text) / 1_000_000


def _changes(view: View, changes: list[AuditEntry], undone: set[object]) -> Html:
    if not changes:
        return html('<p class="empty">{text}</p>', text=view.t("Nobody has changed it lately."))
    rows = []
    for entry in changes:
        undo = Html("")
        if entry.id in undone:
            undo = html(' <span class="badge">{text}</span>', text=view.t("undone"))
        elif view.is_operator and can_undo(entry):
            undo = html(
                _UNDO,
                root=ROOT,
                form=view.form_field(),
                id=entry.id,
                undo=view.t("Undo"),
                rule=str(entry.details.get("rule")),
                key=str(entry.details.get("key")),
            )
        rows.append(
            html(
                '<li>{time} <b>{author}</b> <span class="what">{what}</span>{undo}</li>',
                time=time_tag(entry.at_us / 1e6),
                author=entry.author,
                what=describe_change(view, entry),
                undo=undo,
            )
        )
    return html('<ul class="plain changes">{rows}</ul>', rows=rows)
