"""The result of an uploaded log as HTML: the suggested limit, the chart with its handle, and the heavy keys."""

from __future__ import annotations

from typing import Any, Final

from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.number_format import span_text
from headgate.service.dashboard.page_layout import ROOT, View

MAX_HEAVY_KEYS: Final = 10
# The texts that the script shows; the words in braces are filled in there.
NUMBER_TEXTS: Final = (
    "Refuses {keys} of {allKeys} ordinary keys ({keyShare}), {calls} of their {allCalls} calls ({callShare}).",
    "Of the heavy keys it refuses {keys} of {allKeys}, and {callShare} of their calls.",
    "Refuses none of {allKeys} ordinary keys.",
    "burst",
    "heavy",
    "none",
)

_RESULT = """<section class="card"><h2>{suggested_label}</h2>
<p class="big"><b>{limit}</b> {for_each}</p>
<p class="sub">{log}: {line}</p>{remarks}
<p>{why}</p><p>{confirmed}</p></section>
<section class="card"><div class="card-head"><h2>{choice}</h2>
<button class="button small" type="button" id="reset-choice">{back}</button></div>
<p class="hint" id="choice-hint">{choice_hint}</p>
<div class="frontier" id="frontier"></div>
<p class="legend">{legend}</p>
<div class="row"><div><label for="rate">{rate}</label>
<input type="range" id="rate" min="0" step="1" aria-describedby="choice-hint"></div>
<div><label for="burst">{burst}</label><input type="range" id="burst" min="0" step="1"></div></div>
<div class="choice"><p class="big"><b id="chosen">{limit}</b></p>
<div role="status" id="refusals"></div></div>
<div class="scroll" tabindex="0" role="region" aria-label="{who}"><table class="keys"><caption>{who}</caption>
<thead><tr><th scope="col">{key}</th><th scope="col" class="n">{calls_label}</th>
<th scope="col" class="n">{refused}</th>
<th scope="col" class="n">{share}</th></tr></thead><tbody id="named"></tbody></table></div>
<p class="hint">{who_hint}</p></section>
{heavy}
<section class="card"><h2>{save_title}</h2><p class="hint">{save_hint}</p>
<form id="save" method="post" action="{root}/number/shadow">{form}
<input type="hidden" name="limit" id="save-limit" value="{limit}"><input type="hidden" name="by" value="{by}">
<input type="hidden" name="where" value="{where}"><input type="hidden" name="log" value="{log}">
<div class="buttons"><button class="button primary" type="submit">{save}:
<span id="save-text">{limit}</span></button></div></form></section>"""

_HEAVY = """<section class="card"><h2>{title}</h2><p class="hint">{hint}</p>
<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table class="keys heavy"><thead><tr>
<th scope="col">{key}</th><th scope="col">{looks}</th><th scope="col" class="n">{calls}</th>
<th scope="col" class="n">{minute}</th><th scope="col" class="n">{paths}</th>
<th scope="col" class="n">{errors}</th>
<th scope="col" class="n">{jitter}</th></tr></thead><tbody>{rows}</tbody></table></div><p class="hint">{more}</p>
</section>"""


def result_html(view: View, result: dict[str, Any], job: dict[str, Any]) -> Html:
    """Returns the suggestion of a log as HTML."""
    for_each = view.t("for all calls together") if job["by"] == "all" else view.t("for each {key}", key=job["by"])
    why = view.t(
        "{calls} calls of {keys} keys in {span}. At {rate} a burst of {needed} refuses none of the ordinary keys; "
        "the rest is headroom.",
        calls=f"{result['calls']:,}",
        keys=f"{result['keys']:,}",
        span=span_text(result["last"] - result["first"]),
        rate=result["rate"],
        needed=result["needed_burst"],
    )
    remarks = [*result["remarks"]]
    if result["without_key"]:
        remarks.append(view.t("{n} calls have no key, and were left out", n=f"{result['without_key']:,}"))
    return html(
        _RESULT,
        root=ROOT,
        suggested_label=view.t("Suggested"),
        limit=result["limit"],
        for_each=for_each,
        log=job["name"],
        line=result["line"],
        remarks=join(html('<p class="hint">{text}</p>', text=each) for each in remarks),
        why=why,
        confirmed=_confirmation(view, result),
        choice=view.t("Choose"),
        back=view.t("Back to the suggestion"),
        choice_hint=view.t(
            "Drag the handle, or move it by the arrow keys: left and right follow the line, up and down change "
            "the burst. Below a line, some of these keys are refused."
        ),
        legend=_legend(view),
        rate=view.t("Rate"),
        burst=view.t("Burst"),
        who=view.t("Who would be refused"),
        who_hint=view.t(
            "The heavy keys, and the busiest ordinary ones. Counted on the whole log, as if enforced."
        ),
        key=view.t("Key"),
        calls_label=view.t("Calls"),
        refused=view.t("Refused"),
        share=view.t("Share"),
        heavy=_heavy(view, result["heavy_keys"]),
        save_title=view.t("Save as a shadow rule"),
        save_hint=view.t(
            "It opens in the editor of the rulebook, where you see what it changes before you publish it. In "
            "shadow mode it reports, and refuses nobody."
        ),
        save=view.t("Open in the editor"),
        form=view.form_field(),
        by=job["by"],
        where=job["where"],
    )


def _legend(view: View) -> Html:
    return join(
        html('<span class="key {name}">{text}</span>', name=name, text=view.t(text))
        for name, text in (("candidate", "50 % of the keys"), ("shadow", "99 %"), ("passed", "all ordinary keys"))
    )


def _confirmation(view: View, result: dict[str, Any]) -> str:
    confirmation = result["confirmation"]
    if result["chosen_again"] and confirmation["enough_keys"]:
        return view.t(
            "The first two thirds of the log chose {limit}, but in the last third that refuses {refused} of "
            "{keys} ordinary keys. So the whole log chose again: run it in shadow mode first.",
            limit=confirmation["limit"],
            refused=f"{confirmation['refused_keys']:,}",
            keys=f"{confirmation['keys']:,}",
        )
    text = view.t(
        "In the last third of the log, which was not used to choose, it refuses {refused} of {keys} ordinary "
        "keys.",
        refused=f"{confirmation['refused_keys']:,}",
        keys=f"{confirmation['keys']:,}",
    )
    if not confirmation["enough_keys"]:
        return f"{text} {view.t('These are too few to confirm it: run it in shadow mode first.')}"
    if not result["confirmed"]:
        return f"{text} {view.t('Look at these keys before you enforce it.')}"
    return f"{text} {view.t('So it holds.')}"


def _heavy(view: View, heavy: list[dict[str, Any]]) -> Html:
    if not heavy:
        return Html("")
    rows = join(
        html(
            '<tr><th scope="row">{key}</th><td>{looks}</td><td class="n">{calls}</td><td class="n">{minute}</td>'
            '<td class="n">{paths}</td><td class="n">{errors}</td><td class="n">{jitter}</td></tr>',
            key=each["key"],
            looks=view.t(each["looks_like"]),
            calls=f"{each['calls']:,}",
            minute=f"{each['per_minute']:,}",
            paths=f"{each['paths']:,}",
            errors="" if each["errors"] is None else f"{100 * each['errors']:.0f} %",
            jitter=f"{each['irregularity']:.1f}",
        )
        for each in heavy[:MAX_HEAVY_KEYS]
    )
    return html(
        _HEAVY,
        title=view.t("Heavy keys, set apart"),
        hint=view.t(
            "They need far more than all others. Exempt those that you know; the limit refuses most of the rest."
        ),
        key=view.t("Key"),
        looks=view.t("Looks like"),
        calls=view.t("Calls"),
        minute=view.t("Most a minute"),
        paths=view.t("Paths"),
        errors=view.t("Errors"),
        jitter=view.t("Jitter"),
        rows=rows,
        more=view.t("and {n} more", n=len(heavy) - MAX_HEAVY_KEYS) if len(heavy) > MAX_HEAVY_KEYS else "",
    )
