"""The overview: every rule with what it does now, the worst first; and the processes that decide.

The numbers are means of ten seconds. Where counts come through Redis they end a second ago, because counts arrive
that late. The page's script keeps them current from the live stream; without scripts the page shows the instant at
which it was loaded. At most SHOWN_RULES rules are shown; the script fetches others when they refuse more, when
somebody looks for their names, and when the rulebook changes.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.rules.rule import Rule
from headgate.service.asgi import Response, StreamedResponse, encode_headers
from headgate.service.dashboard.data_sources import DashboardSources, NodeRow
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.live_counts import Row
from headgate.service.dashboard.number_format import rate_text, share_text, span_text
from headgate.service.dashboard.page_layout import ROOT, View
from headgate.service.dashboard.page_request import PageRequest
from headgate.service.dashboard.request import SAFE_FIELDS, json_response, page_response
from headgate.service.dashboard.rule_text import limit_texts, mode_badges
from headgate.telemetry.decision_counts import NO_RULE, OTHER_RULES

WINDOW_S: Final = 10
SHOWN_RULES: Final = 100  # unless all are wanted

_PAGE = """<section class="tiles" aria-label="{now}">
<div class="tile"><h2>{calls}</h2><p><b id="sum-offered">{offered}</b> <small>/s</small></p></div>
<div class="tile passed"><h2>{passed_label}</h2><p><b id="sum-passed">{passed}</b> <small>/s</small></p></div>
<div class="tile delayed"><h2>{delayed_label}</h2><p><b id="sum-delayed">{delayed}</b> <small>/s</small></p></div>
<div class="tile refused"><h2>{refused_label}</h2><p><b id="sum-refused">{refused}</b> <small>/s</small>
<span id="sum-share" class="share">{share}</span></p></div>
<div class="tile shadow"><h2>{trial_label}</h2><p><b id="sum-trial">{trial}</b> <small>/s</small></p></div>
</section>
<p id="problem" class="problem" role="alert"{problem_hidden}>{problem}</p>
<section class="card chart-card"><h2>{all_calls}</h2>
<div class="chart" id="total" role="img" aria-label="{all_calls}"></div></section>
<section class="card"><div class="card-head"><h1 id="rules-title">{rules}</h1>
<label class="filter"><span class="hidden">{filter}</span>
<input id="filter" type="search" placeholder="{filter}"></label>
</div>
<div class="scroll" tabindex="0" role="region" aria-label="{rules}"><table class="rules" id="rules">
<thead><tr><th scope="col">{rule_title}</th><th scope="col" class="spark-head">{minute}</th>
<th scope="col" class="n">{calls}/s</th><th scope="col" class="n">{passed_label}</th>
<th scope="col" class="n">{delayed_label}</th><th scope="col" class="n">{refused_label}</th>
<th scope="col" class="n">%</th><th scope="col" class="n">{shadow_label}</th>
<th scope="col" class="n">{candidate_label}</th></tr></thead>
<tbody>{rows}</tbody></table></div>
{more}<p class="legend">
<span class="key passed">{passed_label}</span><span class="key delayed">{delayed_label}</span>
<span class="key refused">{refused_label}</span><span class="key shadow">{shadow_label}</span>
<span class="key candidate">{candidate_label}</span></p></section>
<section class="card"><h2>{nodes_title}</h2>
<div class="scroll" tabindex="0" role="region" aria-label="{nodes_title}">
<table id="nodes"><thead><tr><th scope="col">{name}</th><th scope="col">{kind}</th><th scope="col">{version}</th>
<th scope="col" class="n">{latency}</th><th scope="col">{state}</th></tr></thead>
<tbody>{nodes}</tbody></table></div>
</section>"""

_ROW = """<tr data-rule="{name}"><th scope="row"><a href="{link}">{title}</a>{badges}<small>{limits}</small></th>
<td class="spark"><svg viewBox="0 0 60 20" preserveAspectRatio="none" aria-hidden="true"></svg></td>
{rates}</tr>"""

_COLUMNS: Final = ("offered", "passed", "delayed", "refused", "share", "shadow", "candidate")


class RuleRates:
    """The rates of a rule per second, over the last ten seconds."""

    def __init__(self, rows: list[Row], last_s: int) -> None:
        recent = [row for row in rows if last_s - WINDOW_S < row[0] <= last_s]
        sums = [sum(row[column] for row in recent) / WINDOW_S for column in range(1, 6)]
        self.offered: float = sums[0]
        self.delayed: float = sums[1]
        self.refused: float = sums[2]
        self.shadow: float = sums[3]
        self.candidate: float = sums[4]

    @property
    def order(self) -> tuple[float, float, float]:
        """Orders rules: those that refuse most come first, then trials that would, then the busiest."""
        return -self.refused, -self.shadow - self.candidate, -self.offered


class OverviewPage:
    """Shows the overview, and streams what changes."""

    def __init__(self, limiter: AsyncRuleLimiter, sources: DashboardSources) -> None:
        self._limiter, self._sources = limiter, sources

    async def show(self, page: PageRequest) -> Response:
        view = page.view
        rows = await self._sources.rows()
        rules = self._rules(rows)
        rates = self._rates(rows, rules)
        shown = _shown(rates, "all" in page.query)
        totals = [
            sum(getattr(each, name) for each in rates.values()) for name in ("offered", "delayed", "refused")
        ]
        offered, delayed, refused = totals
        nodes = await self._sources.nodes()
        problem = None if self._sources.availability.problem else self._sources.live.problem
        body = html(
            _PAGE,
            now=view.t("Now"),
            calls=view.t("Calls"),
            passed_label=view.t("Passed"),
            delayed_label=view.t("Delayed"),
            refused_label=view.t("Refused"),
            shadow_label=view.t("Shadow"),
            candidate_label=view.t("Candidate"),
            trial_label=view.t("Trials would refuse"),
            offered=rate_text(offered),
            passed=rate_text(offered - refused),
            delayed=rate_text(delayed),
            refused=rate_text(refused),
            share=share_text(refused, offered),
            trial=rate_text(sum(each.shadow + each.candidate for each in rates.values())),
            problem=problem,
            problem_hidden=Html("") if problem else Html(" hidden"),
            all_calls=view.t("All rules, the last minute"),
            rules=view.t("{n} rules", n=len(self._limiter.rulebook)),
            filter=view.t("Filter rules"),
            rule_title=view.t("Rule"),
            minute=view.t("Last minute"),
            rows=join(_row(view, name, rules[name], rates[name]) for name in shown),
            more=_more(view, len(rules), len(shown)),
            nodes_title=view.t("Services, gateways and programs"),
            name=view.t("Name"),
            kind=view.t("Kind"),
            version=view.t("Version"),
            latency=view.t("Redis answers in"),
            state=view.t("State"),
            nodes=join(_node(view, node) for node in nodes),
        )
        data = {
            "rows": {name: rows[name] for name in rows if name in rates},
            "marks": await self._sources.marks(),
            "texts": _texts(view),
            "window": WINDOW_S,
            "lag": self._sources.lag_s,
            "version": self._limiter.rulebook.version,
            "partial": len(shown) < len(rules),
        }
        return page_response(
            view.page(view.t("Overview"), body, active="", scripts=("charts.js", "overview.js"), data=data)
        )

    def _rules(self, rows: dict[str, list[Row]]) -> dict[str, Rule | None]:
        """Returns the rules of the rulebook, and None for each other name that was counted."""
        return dict.fromkeys(rows) | {rule.name: rule for rule in self._limiter.rulebook.rules}

    def _rates(self, rows: dict[str, list[Row]], rules: dict[str, Rule | None]) -> dict[str, RuleRates]:
        last_s = max((row[-1][0] for row in rows.values()), default=0) - self._sources.lag_s
        return {name: RuleRates(rows.get(name, []), last_s) for name in rules}

    async def rules(self, page: PageRequest) -> Response:
        """Returns rows of the table of rules, for the script: the worst, or those whose names have `find`."""
        view, find = page.view, page.optional("find").strip().lower()
        rows = await self._sources.rows()
        rules = self._rules(rows)
        found = {name: rule for name, rule in rules.items() if find in name.lower()}
        rates = self._rates(rows, found)
        shown = _shown(rates, "all" in page.query)
        return json_response(
            {
                "title": view.t("{n} rules", n=len(self._limiter.rulebook)),
                "rows": join(_row(view, name, rules[name], rates[name]) for name in shown),
                "partial": len(shown) < len(found),
                "version": self._limiter.rulebook.version,
            }
        )

    async def nodes(self, page: PageRequest) -> Response:
        """Returns the rows of the table of processes, for the script."""
        rows = join(_node(page.view, node) for node in await self._sources.nodes())
        return json_response({"rows": rows})

    async def stream(self, page: PageRequest) -> StreamedResponse:
        """Streams the counts as they change (server-sent events)."""
        fields = [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-store"),
            ("x-accel-buffering", "no"),
        ]
        return StreamedResponse(200, encode_headers([*fields, *SAFE_FIELDS]), self._sources.live.stream())


def _shown(rates: dict[str, RuleRates], is_all: bool) -> list[str]:
    """Returns the names of the rules that are shown, the worst first."""
    ordered = sorted(rates, key=lambda name: (rates[name].order, name))
    return ordered if is_all else ordered[:SHOWN_RULES]


def _texts(view: View) -> dict[str, str]:
    words = ("Passed", "Delayed", "Refused", "Shadow", "Candidate", "Version", "Offered", "by")
    return {word: view.t(word) for word in words}


def _row(view: View, name: str, rule: Rule | None, rates: RuleRates) -> Html:
    title = {NO_RULE: view.t("no rule applies"), OTHER_RULES: view.t("all other rules")}.get(name, name)
    return html(
        _ROW,
        name=name,
        link=f"{ROOT}/rule?{urlencode({'name': name})}",
        title=title,
        badges=mode_badges(view, rule),
        limits="" if rule is None else limit_texts(rule),
        rates=(_rate(column, rates) for column in _COLUMNS),
    )


def _rate(column: str, rates: RuleRates) -> Html:
    if column == "share":
        return html('<td class="n share">{share}</td>', share=share_text(rates.refused, rates.offered))
    number = rates.offered - rates.refused if column == "passed" else getattr(rates, column)
    level = "alarm" if number and column == "refused" else "" if number else "zero"
    return html('<td class="n {name} {level}">{rate}</td>', name=column, level=level, rate=rate_text(number))


def _more(view: View, rules: int, shown: int) -> Html:
    if shown >= rules:
        return Html("")
    text = view.t("Show all {n} rules", n=rules)
    return html('<p class="more"><a class="button" href="{root}/?all=1">{text}</a></p>', root=ROOT, text=text)


def _node(view: View, node: NodeRow) -> Html:
    state = node.degraded or (view.t("silent for {span}", span=span_text(node.age_s)) if node.age_s > 10 else "")
    return html(
        '<tr><th scope="row">{name}</th><td>{kind}</td><td>{version}</td><td class="n">{latency}</td>'
        '<td><span class="state {level}">{state}</span></td></tr>',
        name=node.name,
        kind=view.t(node.kind),
        version=node.version or "-",
        latency="-" if node.latency_ms is None else f"{node.latency_ms:.1f} ms",
        level="bad" if node.degraded else "idle" if state else "good",
        state=state or view.t("works"),
    )
