"""The card of staged enforcement on a rule's page: a form to start it, or how far it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headgate.errors import HeadgateError, InvalidRule
from headgate.limit_syntax import parse_span
from headgate.rules.rule import Rule
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.number_format import span_text
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.staged_enforcement import RUNNING, STAGES, StagedEnforcement, StagedPlan, can_be_staged

_CARD = '<section class="card" id="stages"><h2>{title}</h2>{ended}{body}</section>'

_FORM = """<p class="hint">{hint}</p><form method="post" action="{root}/rule/stages/start">{form}
<input type="hidden" name="name" value="{rule}"><div class="row">
<div><label for="why">{why}</label>
<input id="why" name="reason" value="{typed_why}" required maxlength="300" autocomplete="off"></div>
<div><label for="hold">{hold}</label>
<input id="hold" name="hold" value="{typed_hold}" required maxlength="20"></div>
<div><label for="bound">{bound}</label>
<input id="bound" name="bound" value="{typed_bound}" required maxlength="10"></div>
<button class="button primary" type="submit">{start}</button></div></form>"""

_RUNNING = """<ul class="plain stages">{stages}</ul><p class="hint">{hold} · {bound} {share} {of}</p>{stop}"""

_STOP = """<form method="post" action="{root}/rule/stages/stop">{form}
<input type="hidden" name="name" value="{rule}">
<button class="button danger" type="submit">{text}</button></form>"""

_EXAMPLE: Final = "such as 1 % or 0.5 %"


def stage_numbers(form: dict[str, str]) -> tuple[float, float]:
    """Returns how long a stage is held, in seconds, and the share of calls that it may refuse."""
    bound = re.fullmatch(r"\s*(\d{1,2}(?:\.\d{1,4})?)\s*%?\s*", form.get("bound", ""))
    if bound is None:
        raise InvalidRule(f"The bound is a percentage, {_EXAMPLE}; not {form.get('bound', '')[:20]!r}.")
    return parse_span(form.get("hold", "")) / 1_000_000, float(bound[1]) / 100


async def stages_card(
    view: View, rule: Rule | None, staged: StagedEnforcement, *, can_publish: bool, typed: Mapping[str, str]
) -> Html:
    """Returns the card; nothing for a rule that has no keys to be enforced for. `typed`: what a form had."""
    try:
        plan, has_runner = await staged.plan(), await staged.has_runner()
    except HeadgateError:
        return Html("")
    ours = plan if plan is not None and rule is not None and plan.rule == rule.name else None
    if rule is None or not can_publish or (ours is None and not can_be_staged(rule)):
        return Html("")
    ended = None
    if ours is not None and ours.state != RUNNING:
        text = view.t("{state}: {why}", state=view.t(ours.state), why=ours.why)
        ended = html('<p class="{kind}">{text}</p>', kind="hint" if ours.state == "done" else "warning", text=text)
    if ours is not None and ours.state == RUNNING:
        body = _running(view, ours)
    elif not can_be_staged(rule) or not view.is_operator:
        body = Html("")
    elif not has_runner:
        text = view.t("No service runs that could watch over the stages: start headgate serve.")
        body = html('<p class="empty">{text}</p>', text=text)
    else:
        body = _form(view, rule, typed)
    return html(_CARD, title=view.t("Enforce it in stages"), ended=ended, body=body)


def _form(view: View, rule: Rule, typed: Mapping[str, str]) -> Html:
    return html(
        _FORM,
        root=ROOT,
        form=view.form_field(),
        rule=rule.name,
        hint=view.t(
            "It is enforced for 1, 10, 50 and 100 % of its keys. A stage that refuses too much is rolled back."
        ),
        why=view.t("Why?"),
        hold=view.t("Each stage for"),
        bound=view.t("Roll back above"),
        start=view.t("Start with 1 %"),
        typed_why=typed.get("reason", ""),
        typed_hold=typed.get("hold", "10m"),
        typed_bound=typed.get("bound", "1 %"),
    )


def _running(view: View, plan: StagedPlan) -> Html:
    stages = join(
        html(
            '<li class="{state}">{percent} %</li>',
            state="past" if index < plan.stage else "now" if index == plan.stage else "",
            percent=str(percent),
        )
        for index, percent in enumerate(STAGES)
    )
    stop = Html("")
    if view.is_operator:
        text = view.t("Stop, and roll back")
        stop = html(_STOP, root=ROOT, form=view.form_field(), rule=plan.rule, text=text)
    return html(
        _RUNNING,
        stages=stages,
        hold=f"{view.t('Each stage for')} {span_text(plan.hold_s)}",
        bound=view.t("Roll back above"),
        share=f"{100 * plan.max_refused:g} %",
        of=view.t("of its enforced calls refused"),
        stop=stop,
    )
