"""An operator uploads a log, chooses a limit by pointer, finger and keys, and publishes it as a shadow rule."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browser.browser_harness import PHONE, WIDE, BrowserUser
from tests.dashboard.browser.conftest import TOKEN, Shop
from tests.dashboard.browser.test_appearance import keep
from tests.traffic.sample_logs import combined_log, scan, visits


@pytest.fixture
def shop(shared_shop: Shop) -> Shop:
    return shared_shop


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    calls = [*visits(300), *scan(6000.0, 1500, per_second=5)]
    return combined_log(tmp_path_factory.mktemp("logs") / "access.log", calls)


def upload(visitor: BrowserUser, path: Path) -> None:
    visitor.open("/number")
    visitor.page.set_input_files("#log", path)
    visitor.page.click("#start")
    visitor.page.wait_for_selector("#frontier .handle, #upload-problem .problem", timeout=60_000)


def chosen(visitor: BrowserUser) -> str:
    return visitor.page.inner_text("#chosen")


def test_a_limit_is_found_chosen_and_published_in_shadow(shop: Shop, operator: BrowserUser, log: Path) -> None:
    page = operator.page
    upload(operator, log)
    suggested = chosen(operator)
    assert "combined log, 4,154 lines, " in page.inner_text("#result")
    assert "address=203.0.113.66" in page.inner_text("#named")
    assert "scanner" in page.inner_text("#result")
    assert "Refuses none of 300 ordinary keys." in page.inner_text("#refusals")

    page.focus("#frontier .handle")
    for _ in range(6):
        page.keyboard.press("ArrowDown")
    assert chosen(operator).split(" burst ")[0] == suggested.split(" burst ")[0]
    assert int(chosen(operator).split()[-1]) < int(suggested.split()[-1])
    assert "Refuses none" not in page.inner_text("#refusals")
    assert page.locator("#named tr").count() > 2
    page.keyboard.press("ArrowRight")
    assert chosen(operator).split(" burst ")[0] != suggested.split(" burst ")[0]
    assert page.get_attribute("#frontier .handle", "aria-valuetext") == chosen(operator)
    page.click("#reset-choice")
    assert chosen(operator) == suggested

    box = page.locator("#frontier .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    middle = chosen(operator)
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 3, steps=5)
    page.mouse.up()
    assert middle != suggested
    assert chosen(operator) != middle
    page.locator("#burst").press("ArrowLeft")
    by_slider = chosen(operator)

    page.click("#save button")
    page.wait_for_selector("#changes ins")
    text = page.input_value("#text")
    assert (
        f"  - name: per-address\n    key: address\n    missing: skip\n    limit: {by_slider}\n    mode: shadow"
        in text
    )
    assert text.startswith("rules:\n  - name: buy\n")
    assert page.input_value("#note") == f"{by_slider} in shadow, from access.log"
    page.click("button:has-text('Publish version 2')")
    page.wait_for_selector(".version:has-text('in shadow, from access.log')")
    operator.open("/audit")
    assert page.locator("table.audit tr:has-text('log uploaded')").count() >= 1
    assert "log=access.log" in page.inner_text("table.audit")
    assert page.locator("table.audit tr:has-text('rules published')").count() == 1


def test_a_limit_is_chosen_by_a_finger(shop: Shop, browser: Browser, log: Path) -> None:
    visitor = BrowserUser(browser, shop.admin, viewport=PHONE, has_touch=True)
    visitor.log_in(TOKEN)
    upload(visitor, log)
    suggested = chosen(visitor)
    visitor.page.locator("#frontier .u-over").scroll_into_view_if_needed()
    box = visitor.page.locator("#frontier .u-over").bounding_box()
    assert box is not None
    visitor.page.touchscreen.tap(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.2)
    assert chosen(visitor) != suggested
    assert visitor.errors == []
    visitor.close()


def test_logs_that_cannot_be_used_are_refused_with_a_sentence(
    shop: Shop, operator: BrowserUser, tmp_path: Path
) -> None:
    empty, binary, no_time = tmp_path / "empty.log", tmp_path / "a.out", tmp_path / "notime.csv"
    empty.write_bytes(b"")
    binary.write_bytes(bytes(range(256)) * 100)
    no_time.write_text("address,path\n" + "192.0.2.1,/a\n" * 50)
    large = tmp_path / "large.log"
    with large.open("wb") as file:
        file.truncate(101_000_000)
    for path, sentence in (
        (empty, "empty.log is empty."),
        (binary, "a.out is binary, not a log of lines of text."),
        (no_time, "notime.csv: no time was found."),
        (large, "A log may have at most 100 MB."),
    ):
        upload(operator, path)
        assert sentence in operator.page.inner_text("#upload-problem")
    operator.page.click("summary")
    operator.page.fill("#where", "method")
    operator.page.set_input_files("#log", no_time)
    operator.page.click("#start")
    operator.page.wait_for_selector("#upload-problem .problem:has-text('is no condition')")


def test_the_pages_can_be_used_by_everybody(shop: Shop, browser: Browser, log: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "access.log.gz"
    zipped.write_bytes(gzip.compress(log.read_bytes()))
    problems: list[str] = []
    for scheme, viewport, locale in (
        ("light", WIDE, "en"),
        ("dark", WIDE, "en"),
        ("light", PHONE, "zh-CN"),
        ("dark", PHONE, "en"),
    ):
        visitor = BrowserUser(browser, shop.admin, color_scheme=scheme, viewport=viewport, locale=locale)
        visitor.log_in(TOKEN)
        where = f"{scheme}-{viewport['width']}"
        visitor.open("/number")
        visitor.page.click("summary")
        problems += [f"form {where} {each}" for each in visitor.serious_findings()]
        keep(visitor, f"number-form-{where}")
        upload(visitor, zipped)
        visitor.page.focus("#frontier .handle")
        visitor.page.keyboard.press("ArrowDown")
        visitor.page.keyboard.press("ArrowDown")
        problems += [f"number {where} {each}" for each in visitor.serious_findings()]
        keep(visitor, f"number-{where}")
        problems += [f"{where}: too wide"] * visitor.page.evaluate(
            "document.documentElement.scrollWidth > innerWidth"
        )
        visitor.open("/playground")
        visitor.page.fill("#limit3", "50/s queue 50")
        visitor.page.click("button.primary")
        visitor.page.wait_for_selector("#chart2 .uplot", timeout=60_000)
        problems += [f"playground {where} {each}" for each in visitor.serious_findings()]
        keep(visitor, f"playground-{where}")
        problems += [f"playground {where}: too wide"] * visitor.page.evaluate(
            "document.documentElement.scrollWidth > innerWidth"
        )
        problems += visitor.errors
        visitor.close()
    assert problems == []
