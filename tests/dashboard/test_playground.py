"""The playground: shapes of traffic through limits, with the command line's sentences, and bounds."""

from __future__ import annotations

import json
import re

import pytest

from headgate.errors import InvalidRule
from headgate.limit_syntax import parse
from headgate.service.dashboard import playground_page
from headgate.service.dashboard.background_job import JobBounds
from headgate.service.dashboard.playground_page import (
    DEFAULTS,
    MAX_CALLS,
    RETRY_TEXTS,
    SCRIPT_TEXTS,
    SHAPE_TEXTS,
)
from headgate.service.dashboard.translation import IN_CHINESE
from headgate.traffic.shapes import RETRIES, SHAPES
from tests.dashboard.dashboard_harness import Site, VisitedPage, Visitor

PATH = "/dashboard/playground"


async def play(visitor: Visitor, **fields: str) -> VisitedPage:
    page = await visitor.get(PATH)
    return await visitor.send_form(page, PATH, **{**DEFAULTS, **fields})


def rows(page: VisitedPage) -> dict[str, list[str]]:
    body = page.text.partition("<tbody>")[2].partition("</tbody>")[0]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("</tr>") if row]
    return {first: [re.sub(r" ?<.*", "", each) for each in rest] for first, *rest in cells}


async def test_a_viewer_compares_limits(viewer: Visitor) -> None:
    page = await play(viewer, shape="thundering-herd", rate="10", limit1="20/s", limit2="5/s")
    assert page.status == 200, page.words
    # 600 calls, a hundred at once every ten seconds: of each herd one burst passes.
    assert {limit: cells[:4] for limit, cells in rows(page).items()} == {
        "20/s": ["600", "120", "0", "480"],
        "5/s": ["600", "30", "0", "570"],
    }
    data = json.loads(page.text.partition('id="data">')[2].partition("</script>")[0])
    first = data["series"][0]
    assert (first["t"][:2], first["offered"][:2], first["passed"][:2]) == ([0, 1], [100, 0], [20, 0])
    assert 'id="chart1"' in page.text


async def test_a_link_fills_the_form_and_plays_nothing(viewer: Visitor) -> None:
    page = await viewer.get(f"{PATH}?shape=ramp&rate=7&limit1=9%2Fs&each=on")
    assert '<option value="ramp" selected>' in page.text
    assert 'name="rate" value="7"' in page.text
    assert 'name="limit1" value="9/s"' in page.text
    assert " checked" in page.text
    assert "<tbody>" not in page.text


@pytest.mark.parametrize("text", ["10/ss", "10/s;", "0/s", "ten per second"])
async def test_the_errors_of_a_limit_are_the_command_line_s(viewer: Visitor, text: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        parse(text)
    page = await play(viewer, limit1=text)
    assert page.status == 400
    assert re.sub(r"\s+", " ", str(raised.value)) in page.words
    assert f'value="{text}"' in page.text  # what was written stays


async def test_a_limit_is_needed(viewer: Visitor) -> None:
    page = await play(viewer, limit1=" ", limit2="")
    assert (page.status, "Write a limit, such as 50/s burst 100" in page.words) == (400, True)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"rate": "1000", "for": "10m"},
            f"The playground plays at most {MAX_CALLS:,} calls, and these are 600,000.",
        ),
        ({"rate": "0.001", "for": "2d"}, "The length is above 0 and at most one day"),
        ({"rate": "many"}, 'The rate is a number above 0 and up to 1,000,000, not "many".'),
        ({"rate": "1e9"}, 'The rate is a number above 0 and up to 1,000,000, not "1e9".'),
        ({"clients": "2.5"}, 'The number of clients is a whole number above 0 and up to 10,000, not "2.5".'),
        ({"shape": "flash-mob"}, '"flash-mob" is no shape of traffic. Did you mean flash-sale?'),
        ({"retries": "often"}, '"often" is no way to retry.'),
        ({"limit1": "9/s " * 100}, "limit1 may have 200 characters."),
    ],
)
async def test_what_is_too_much_or_nonsense_is_refused(
    viewer: Visitor, fields: dict[str, str], sentence: str
) -> None:
    page = await play(viewer, **fields)
    assert page.status == 400
    assert sentence in page.words


@pytest.mark.parametrize(
    ("bounds", "bound"),
    [
        (JobBounds(60, 300.0, 50_000_000), "0.05 GB of memory"),
        (JobBounds(1, 300.0, 4_000_000_000), "1 s of computing"),
    ],
)
async def test_a_simulation_that_needs_too_much_ends_with_a_sentence(
    viewer: Visitor, monkeypatch: pytest.MonkeyPatch, bounds: JobBounds, bound: str
) -> None:
    monkeypatch.setattr(playground_page, "BOUNDS", bounds)
    # Four limits for nearly as many calls as are possible; each comes back nine times, and each second is counted.
    many = {"rate": "0.5", "for": "86400s", "clients": "10000", "retries": "ignore", "shape": "steady"}
    page = await play(viewer, **many, **{f"limit{number}": f"{number}/1000d" for number in (1, 2, 3, 4)})
    assert page.status == 400
    assert f"This needs more than {bound}, and a page gets no more." in page.words


async def test_a_stranger_and_a_forged_form_play_nothing(viewer: Visitor, stranger: Visitor, site: Site) -> None:
    assert (await stranger.get(PATH)).status == 303
    assert (await stranger.post(PATH, DEFAULTS)).status == 401
    assert (await viewer.post(PATH, DEFAULTS)).status == 403
    token = (await viewer.get(PATH)).form_token
    forged = await viewer.post(PATH, {**DEFAULTS, "form": token}, origin="https://evil.test")
    assert forged.status == 403


def test_every_shape_has_its_words_in_both_languages() -> None:
    assert set(SHAPE_TEXTS) == set(SHAPES)
    assert set(RETRY_TEXTS) == {"", *RETRIES}
    assert {*SHAPE_TEXTS.values(), *RETRY_TEXTS.values(), *SCRIPT_TEXTS} <= set(IN_CHINESE)
