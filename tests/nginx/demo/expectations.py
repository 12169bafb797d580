"""Checks the results of a sale; an expectation that fails is reported as a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from tests.nginx.demo import shop_servers
from tests.nginx.demo.flash_sale import GATES, SaleResult
from tests.nginx.demo.log_counts import BUYER_RULE, ITEM_RULE

HOT = "phone"
USED = 0.9  # of the phone's limit, while everybody wants one
LATE = 0.5  # seconds: a request that was sent in time may be decided later on a busy machine


def failed_expectations(ending: SaleResult) -> list[str]:
    """All that does not hold."""
    return [*_limits(ending), *_books(ending)]


def _limits(ending: SaleResult) -> Iterator[str]:
    limits, both = shop_servers.shop_limits(), ending.counts.both
    item, buyer = limits[ITEM_RULE], limits[BUYER_RULE]
    for name, sold in both.sold.items():
        if sold > (most := item.over(ending.seconds + LATE)):
            yield f"{sold} of {name} were sold, and {item.text} allows {most:.0f}"
    rush = ending.seconds - ending.opened.seconds
    sold = ending.counts.arrived[HOT] - ending.opened.arrived[HOT]
    if sold < (least := USED * item.a_second * rush):
        yield f"{sold} of {HOT} were sold after the doors opened: fewer than {least:.0f}, and everybody wanted one"
    if sold > (most := item.over(rush + LATE)):
        yield f"{sold} of {HOT} were sold after the doors opened, and {item.text} allows {most:.0f}"
    if both.bot_sold > (most := GATES * buyer.over(ending.seconds + LATE)):
        yield f"the bot bought {both.bot_sold}, and {buyer.text} at each nginx allows {most:.0f}"


def _books(ending: SaleResult) -> Iterator[str]:
    both, reports = ending.counts.both, ending.wrk_reports
    if both.sold != ending.counts.arrived:
        yield f"nginx let pass {dict(both.sold)}, and the backend saw {dict(ending.counts.arrived)}"
    if both.odd:
        yield f"{len(both.odd)} lines of the logs are no sale and no refusal, such as: {both.odd[0]}"
    requests, counted = both.requests.total(), sum(each.requests for each in reports) + ending.visits
    if requests != counted:
        yield f"the logs have {requests} requests, and the buyers made {counted}"
    if lost := sum(each.broken for each in reports):
        yield f"{lost} connections of buyers broke"
    if ending.page.status != 429 or ending.page.body not in shop_servers.pages():
        yield f"a refused buyer got no friendly page, but {ending.page.status}: {ending.page.body[:80]!r}"
