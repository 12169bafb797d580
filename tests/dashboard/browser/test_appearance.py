"""Each page in light and dark, wide and on a phone: no serious finding of axe, and nothing wider than the screen.

HEADGATE_SCREENSHOTS=FOLDER keeps the pictures.
"""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browser.browser_harness import PHONE, WIDE, BrowserUser
from tests.dashboard.browser.conftest import TOKEN, VIEWER_TOKEN, Shop

PAGES = {
    "overview": "/",
    "rule": "/rule?name=buy",
    "key": "/key?rule=buy&key=user%3Dbob",
    "rules": "/rules",
    "version": "/rules/version?number=1",
    "audit": "/audit",
}


@pytest.fixture
def shop(shared_shop: Shop) -> Shop:
    return shared_shop


def test_every_page_can_be_used_by_everybody(shop: Shop, browser: Browser) -> None:
    shop.buy("bob", 12)
    problems: list[str] = []
    for scheme, viewport in (("light", WIDE), ("dark", WIDE), ("light", PHONE), ("dark", PHONE)):
        visitor = BrowserUser(browser, shop.admin, color_scheme=scheme, viewport=viewport)
        visitor.open("/login")
        where = f"{scheme} {viewport['width']}"
        problems += [f"login {where} {each}" for each in visitor.serious_findings()]
        visitor.log_in(TOKEN)
        for name, path in PAGES.items():
            visitor.open(path)
            visitor.wait_for("document.getElementById('live').dataset.state === 'on'")
            problems += [f"{name} {where} {each}" for each in visitor.serious_findings()]
            if visitor.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                problems.append(f"{name} {where}: the page is wider than the screen")
            keep(visitor, f"{name}-{scheme}-{viewport['width']}")
        problems += visitor.errors
        visitor.close()
    assert problems == []


def test_a_table_can_be_walked_by_keyboard(shop: Shop, browser: Browser) -> None:
    visitor = BrowserUser(browser, shop.admin)
    visitor.log_in(VIEWER_TOKEN, "vera")
    seen = set()
    for _ in range(30):
        visitor.page.keyboard.press("Tab")
        seen.add(visitor.page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert {"Skip to the content", "Overview", "Rules", "Audit", "filter", "buy", "browse", "everybody"} <= seen
    visitor.page.focus("tr[data-rule=buy] a")
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_selector("h1:has-text('buy')")
    visitor.close()


def test_chinese_fits(shop: Shop, browser: Browser) -> None:
    visitor = BrowserUser(browser, shop.admin, locale="zh-CN", viewport=PHONE)
    visitor.log_in(TOKEN, "李雷")
    assert "概览" in visitor.page.inner_text("nav")
    for name, path in PAGES.items():
        visitor.open(path)
        assert not visitor.page.evaluate("document.documentElement.scrollWidth > innerWidth"), name
        keep(visitor, f"{name}-zh-390")
    visitor.close()


def keep(visitor: BrowserUser, name: str) -> None:
    folder = os.environ.get("HEADGATE_SCREENSHOTS")
    if folder:
        visitor.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
