"""Renders a sale as text of 80 columns. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from textwrap import wrap

from headgate.cli.text_style import Style
from tests.nginx.demo import shop_servers
from tests.nginx.demo.flash_sale import (
    BOT_PART,
    CALM,
    CALM_PART,
    GATES,
    RUSH,
    SaleCounts,
    SaleResult,
    local_refusals,
)
from tests.nginx.demo.log_counts import BUYER_RULE, ITEM_RULE, LogCounts

WIDTH = 79
_NAME = 15
_WIDTHS = (8, 8, 10, 9, 9, 10, 9)
_STYLES = ("cyan", "green", "yellow", "red", "red", "bold", "green")
_HEAD = (
    ("", "", "refused:", "refused:", "of these", "asked of", "reached"),
    ("asked", "passed", "buyer", "item", "unasked", "Redis", "backend"),
)
_COLUMNS = 60  # for time
_FULL = GATES * RUSH  # requests a second that make a full bar


def head(ink: Style) -> list[str]:
    """Above the rows."""
    return [ink(" " * _NAME + _cells(words), "dim") for words in _HEAD]


def rows(counts: SaleCounts, ink: Style, when: str = "") -> list[str]:
    """A line for each nginx, and one for all: since the sale began."""
    names = [f"nginx {number}" for number in range(1, len(counts.gates) + 1)]
    all_of_it = (*_of(counts.both), local_refusals(counts), counts.questions, counts.arrived.total())
    lines = [_row(name, _of(tally), ink) for name, tally in zip(names, counts.gates, strict=True)]
    lines.append(_row("together", all_of_it, ink))
    return [f"{'' if number else when:>4}  {line}" for number, line in enumerate(lines)]


def live(history: Sequence[SaleCounts], seconds: float, ink: Style) -> list[str]:
    """The whole page while it runs."""
    counts = history[-1]
    title, clock = f"headgate {ink.dot} a flash sale at two nginx", f"{counts.seconds:4.1f} s of {seconds:g}"
    calm = counts.seconds < seconds * CALM_PART
    state = f"calm: {GATES * CALM} requests a second"
    rush = f"the doors are open: everybody wants the phone; {BOT_PART:.0%} of requests are a bot's"
    return [
        ink(f"{title:<{WIDTH - len(clock)}}", "bold") + clock,
        state if calm else rush,
        "",
        *head(ink),
        *rows(counts, ink),
        "",
        *_bars(history, seconds, ink),
    ]


def results(ending: SaleResult, failures: Sequence[str], ink: Style) -> list[str]:
    """Renders the results and the lessons of a sale; or the expectations that failed."""
    lessons = [ink(f"This does not hold: {failure}.", "red") for failure in failures] or _lessons(ending)
    return [*_items(ending, ink), "", *_more(ending), "", *lessons]


def _of(tally: LogCounts) -> tuple[int, ...]:
    return tally.requests.total(), tally.sold.total(), tally.refused[BUYER_RULE], tally.refused[ITEM_RULE]


def _row(name: str, numbers: Sequence[int], ink: Style) -> str:
    return f"{name:<{_NAME - 6}}" + _cells([f"{number:,}" for number in numbers], ink)


def _cells(words: Sequence[str], ink: Style | None = None) -> str:
    cells = [f"{word:>{wide}}" for word, wide in zip(words, _WIDTHS, strict=False)]
    if ink is not None:
        cells = [ink(cell, style) for cell, style in zip(cells, _STYLES, strict=False)]
    return "".join(cells)


def _bars(history: Sequence[SaleCounts], seconds: float, ink: Style) -> list[str]:
    """Requests, sales and questions, a second, on one square-root scale."""
    history = [SaleCounts(0.0, (), Counter(), 0), *history]
    series = (
        ("asked", [counts.both.requests.total() for counts in history], "cyan"),
        ("passed", [counts.arrived.total() for counts in history], "green"),
        ("to Redis", [counts.questions for counts in history], "yellow"),
    )
    times = [counts.seconds for counts in history]
    lines = [
        f"      {name:<{_NAME - 6}}{ink(_bar(times, values, seconds, ink), how)}" for name, values, how in series
    ]
    step = max(1, round(seconds / 5))
    axis = [" "] * (_COLUMNS + 4)
    for second in range(0, int(seconds) + 1, step):
        place = round(second / seconds * _COLUMNS)
        axis[place : place + len(str(second))] = str(second)
    note = f"{'':<{_NAME}}{''.join(axis).rstrip()} s"
    return [*lines, ink(note, "dim")]


def _bar(times: Sequence[float], values: Sequence[int], seconds: float, ink: Style) -> str:
    cells, steps = [" "] * _COLUMNS, len(ink.levels) - 1
    for (since, until), (before, after) in zip(pairwise(times), pairwise(values), strict=True):
        if until <= since:
            continue
        rate = (after - before) / (until - since)
        level = min(steps, max(1, round(sqrt(rate / _FULL) * steps))) if rate > 0 else 0
        for place in range(int(since / seconds * _COLUMNS), min(_COLUMNS, round(until / seconds * _COLUMNS))):
            cells[place] = ink.levels[level]
    return "".join(cells).rstrip()


def _items(ending: SaleResult, ink: Style) -> list[str]:
    limits, both = shop_servers.shop_limits(), ending.counts.both
    item, buyer = limits[ITEM_RULE], limits[BUYER_RULE]
    form = "{:<15}{:>8}{:>8}{:>18}   {}"
    lines = [ink(form.format("", "asked", "passed", "passed a second", "limit"), "dim")]
    for name, requests in both.requests.most_common():
        rate = f"{ending.a_second(name):.1f}"
        lines.append(form.format(name, f"{requests:,}", f"{both.sold[name]:,}", rate, f"{item.text} in all"))
    rate, words = f"{both.bot_sold / ending.seconds:.1f}", f"{buyer.text} at each nginx"
    return [*lines, form.format("the bot", f"{both.bot_requests:,}", f"{both.bot_sold:,}", rate, words)]


def _more(ending: SaleResult) -> list[str]:
    title = re.search(rb"<title>(.*?)</title>", ending.page.body)
    seen = "no page" if title is None else f'the page "{title[1].decode()}"'
    after = ending.page.headers.get("retry-after")
    p99 = " and ".join(f"{report.p99_ms:.1f} ms" for report in ending.wrk_reports)
    sold = ending.counts.both.sold.total()
    words = (
        "Items a second are counted from when the doors were open, with the burst. Unasked: refused by nginx "
        "itself, because it sheds the flood and remembers refusals.",
        f"Redis was asked {ending.counts.questions / max(1, sold):.2f} times for each request that passed.",
        f"A refused buyer gets {ending.page.status}, {seen}, and Retry-After: {after}.",
        f"99 % of the requests, passed or refused, were answered within {p99}; "
        "the buyers and all servers share this machine.",
    )
    return [line for each in words for line in wrap(each, WIDTH)]


def _lessons(ending: SaleResult) -> list[str]:
    """Three sentences to take home."""
    limits, counts = shop_servers.shop_limits(), ending.counts
    both, item = counts.both, limits[ITEM_RULE]
    requests = both.requests.total()
    lessons = (
        f"One limit for all: the two nginx together let pass {ending.a_second('phone'):.0f} phones a second where "
        f"{item.text} is allowed, because Redis keeps one count for both. The backend saw nothing else.",
        f"A limit may stay at home: the bot made {both.bot_requests / requests:.0%} of the requests and got "
        f"{both.bot_sold / max(1, both.sold.total()):.1%} of the goods. Each nginx counts buyers in its own "
        "memory, and Redis never hears of it.",
        f"A flood does not reach Redis: {requests:,} requests were {counts.questions:,} questions "
        f"({counts.questions / ending.seconds:.0f} a second). Far above a limit nginx refuses at random by "
        "itself, so that every request has the same chance.",
    )
    lines: list[str] = []
    for number, lesson in enumerate(lessons, 1):
        lines += wrap(lesson, WIDTH, initial_indent=f"{number}. ", subsequent_indent="   ")
    return lines
