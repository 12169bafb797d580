"""The playground: plays a shape of traffic through several limits side by side, in virtual time.

A simulation runs in a process of its own at low priority, is bounded in calls and in length, and one runs
at a time in a worker.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from headgate.errors import HeadgateError, InvalidRule
from headgate.limit_syntax import parse_span
from headgate.service.asgi import Response
from headgate.service.dashboard.background_job import JobBounds, job_result
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.job_process import SIMULATE
from headgate.service.dashboard.number_format import share_text
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.request import page_response
from headgate.traffic.shapes import RETRIES, SHAPES, TrafficShape
from headgate.traffic.simulate_shape import limit_rulebook

MAX_CALLS: Final = 50_000
MAX_SECONDS: Final = 86_400.0
MAX_CLIENTS: Final = 10_000
MAX_LIMITS: Final = 4
BOUNDS: Final = JobBounds(cpu_s=30, seconds=300.0, max_bytes=1_000_000_000)
_MAX_CHARS: Final = 200
DEFAULTS: Final = {
    "shape": "flash-sale",
    "rate": "50",
    "for": "1m",
    "clients": "100",
    "retries": "",
    "duration": "100ms",
    "limit1": "50/s burst 100",
    "limit2": "50/s sliding",
}
SHAPE_TEXTS: Final = {
    "steady": "steady: one call after the other",
    "poisson": "Poisson: independent clients",
    "square-burst": "square burst: quiet and busy by turns",
    "ramp": "ramp: from nothing to twice the rate",
    "flash-sale": "flash sale: twenty times as many at once, which fade away",
    "diurnal": "diurnal: a day and a night",
    "retry-storm": "retry storm: all who are refused try again",
    "thundering-herd": "thundering herd: all at once, every ten seconds",
}
RETRY_TEXTS: Final = {
    "": "as the shape has it",
    "none": "they give up",
    "honour": "they honour Retry-After",
    "ignore": "they try again at once",
}
SCRIPT_TEXTS: Final = ("Offered", "Passed", "Delayed", "Refused")

_PAGE = """<div class="title"><h1>{title}</h1><p class="sub">{intro}</p></div>
{problem}
<form id="playground" class="card" method="post" action="{root}/playground">{form}
<div class="row"><div class="grow"><label for="shape">{shape_label}</label>
<select id="shape" name="shape">{shapes}</select></div>
{numbers}
<div><label for="retries">{retries_label}</label><select id="retries" name="retries">{retries}</select></div></div>
<fieldset><legend>{limits_label}</legend><div class="row">{limits}</div>
<label class="check"><input type="checkbox" name="each" value="on"{each}> {each_label}</label></fieldset>
<div class="buttons"><button class="button primary" type="submit">{play}</button>
<span class="hint">{bound}</span></div></form>
{result}"""

_NUMBER = """<div><label for="{name}">{label}</label>
<input id="{name}" name="{name}" value="{value}" required autocomplete="off"></div>"""

_LIMIT = """<div><label for="{name}">{label}</label>
<input id="{name}" name="{name}" value="{value}" autocomplete="off" spellcheck="false"></div>"""

_TABLE = """<section class="card"><h2>{title}</h2>
<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table class="limits">
<thead><tr><th scope="col">{limit}</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>
<p class="hint">{hint}</p></section>"""

_CHART = """<section class="card chart-card"><h2>{limit}</h2>
<div class="chart" id="chart{number}" role="img" aria-label="{label}"></div></section>"""


class PlaygroundPage:
    """Simulates limits."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    async def show(self, page: PageRequest) -> Response:
        """Shows the form, with the numbers of the query, so that a link can hold them."""
        given = {name: value for name, value in page.query.items() if name != "lang"}
        return _page(page.view, given or DEFAULTS)

    async def play(self, page: PageRequest) -> Response:
        """Plays the traffic of the form, and shows the form with its results."""
        try:
            job = await asyncio.to_thread(_job_of, page.form)
            if self._busy.locked():
                raise InvalidRule("Another simulation is running: one at a time. Try again in a moment.")
            async with self._busy:
                result = await job_result(job, BOUNDS)
        except HeadgateError as error:
            return _page(page.view, page.form, problem=str(error), status=400)
        return _page(page.view, page.form, result)


def _job_of(form: dict[str, str]) -> dict[str, Any]:
    """Returns the job of a form; raises HeadgateError with the sentence of what is wrong."""
    if long := next((name for name, value in form.items() if name != "form" and len(value) > _MAX_CHARS), None):
        raise InvalidRule(f"{long} may have {_MAX_CHARS} characters.")
    limits = [text for number in range(MAX_LIMITS) if (text := form.get(f"limit{number + 1}", "").strip())]
    if not limits:
        raise InvalidRule("Write a limit, such as 50/s burst 100; several are compared.")
    shape: dict[str, Any] = {
        "name": form.get("shape", ""),
        "rate": _number("The rate", form.get("rate", ""), 1_000_000),
        "seconds": _span("The length", form.get("for", ""), MAX_SECONDS),
        "clients": round(_number("The number of clients", form.get("clients", ""), MAX_CLIENTS, whole=True)),
        "retries": form.get("retries") or None,
    }
    TrafficShape(**shape)
    if (calls := shape["rate"] * shape["seconds"]) > MAX_CALLS:
        raise InvalidRule(
            f"The playground plays at most {MAX_CALLS:,} calls, and these are {calls:,.0f}. Lower the rate or the "
            "length, or run headgate simulate on the command line."
        )
    per_client = form.get("each") == "on"
    for text in limits:
        limit_rulebook(text, per_client)
    duration = _span("The time that a call takes", form.get("duration", ""), MAX_SECONDS)
    return {"job": SIMULATE, "shape": shape, "limits": limits, "per_client": per_client, "duration": duration}


def _number(name: str, text: str, largest: int, *, whole: bool = False) -> float:
    pattern = r"[0-9]{1,9}" if whole else r"[0-9]{1,9}(\.[0-9]{1,9})?"
    text = text.strip()
    if not re.fullmatch(pattern, text) or not 0 < float(text) <= largest:
        kind = "a whole number" if whole else "a number"
        raise InvalidRule(f'{name} is {kind} above 0 and up to {largest:,}, not "{text}".')
    return float(text)


def _span(name: str, text: str, longest_s: float) -> float:
    seconds = parse_span(text.strip()) / 1e6
    if not 0 < seconds <= longest_s:
        raise InvalidRule(f"{name} is above 0 and at most one day, such as 90s or 10m.")
    return seconds


def _page(
    view: View, values: dict[str, str], result: dict[str, Any] | None = None, problem: str = "", status: int = 200
) -> Response:
    numbers = (
        ("rate", view.t("Calls per second")),
        ("for", view.t("For how long")),
        ("clients", view.t("Clients")),
        ("duration", view.t("Time of a call")),
    )
    body = html(
        _PAGE,
        root=ROOT,
        title=view.t("Playground"),
        intro=view.t("Any limits side by side, under the traffic that they will meet. Time is virtual."),
        problem=html('<p class="problem" role="alert">{text}</p>', text=problem) if problem else None,
        form=view.form_field(),
        shape_label=view.t("Traffic"),
        shapes=_options(view, {name: SHAPE_TEXTS[name] for name in SHAPES}, values.get("shape", "")),
        numbers=join(
            html(_NUMBER, name=name, label=label, value=values.get(name, DEFAULTS[name]))
            for name, label in numbers
        ),
        retries_label=view.t("Refused clients"),
        retries=_options(view, {name: RETRY_TEXTS[name] for name in ("", *RETRIES)}, values.get("retries", "")),
        limits_label=view.t("Limits"),
        limits=join(
            html(
                _LIMIT,
                name=f"limit{number}",
                label=view.t("Limit {n}", n=number),
                value=values.get(f"limit{number}", ""),
            )
            for number in range(1, MAX_LIMITS + 1)
        ),
        each=Html(" checked") if values.get("each") == "on" else None,
        each_label=view.t("Each client is counted by itself"),
        play=view.t("Play"),
        bound=view.t("At most {n} calls, and a day.", n=f"{MAX_CALLS:,}"),
        result=None if result is None else _result(view, result),
    )
    data: dict[str, Any] = {"texts": {text: view.t(text) for text in SCRIPT_TEXTS}, "series": []}
    if result is not None:
        data["series"] = [each["series"] for each in result["limits"]]
    scripts = ("charts.js", "playground.js")
    page = view.page(view.t("Playground"), body, active="playground", scripts=scripts, data=data)
    return page_response(page, status)


def _options(view: View, texts: dict[str, str], chosen: str) -> Html:
    return join(
        html(
            '<option value="{name}"{selected}>{text}</option>',
            name=name,
            selected=Html(" selected") if name == chosen else None,
            text=view.t(text),
        )
        for name, text in texts.items()
    )


def _result(view: View, result: dict[str, Any]) -> Html:
    limits = result["limits"]
    heads = (
        "Offered",
        "Passed",
        "Delayed",
        "Refused",
        "Gave up",
        "Most passed in a second",
        "Median wait",
        "p99 wait",
    )
    table = html(
        _TABLE,
        title=view.t("Side by side"),
        limit=view.t("Limit"),
        heads=join(html('<th scope="col" class="n">{text}</th>', text=view.t(text)) for text in heads),
        rows=join(_row(each) for each in limits),
        hint=view.t("The wait is the time from a client's first try until its call passes."),
    )
    charts = join(
        html(
            _CHART, number=str(number), limit=each["limit"], label=f"{view.t('Calls per second')}: {each['limit']}"
        )
        for number, each in enumerate(limits)
    )
    return html('{table}<div class="side-by-side">{charts}</div>', table=table, charts=charts)


def _row(limit: dict[str, Any]) -> Html:
    share = share_text(limit["refused"], limit["offered"])
    cells = (
        f"{limit['offered']:,}",
        f"{limit['passed']:,}",
        f"{limit['delayed']:,}",
        html("{n} <small>{share}</small>", n=f"{limit['refused']:,}", share=share),
        f"{limit['given_up']:,}",
        f"{limit['max_passed_per_second']:,}",
        f"{limit['wait_p50']:.2f} s",
        f"{limit['wait_p99']:.2f} s",
    )
    return html(
        '<tr><th scope="row">{limit}</th>{cells}</tr>',
        limit=limit["limit"],
        cells=join(html('<td class="n">{text}</td>', text=text) for text in cells),
    )
