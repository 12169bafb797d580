"""Debian's chromium, driven by Playwright; pages that look right in light and dark, wide and narrow."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--font-render-hinting=none"),
)
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
AXE = Path(__file__).with_name("axe.min.js")
TIMEOUT_MS = 20_000  # of whatever a test waits for: the machine may be busy


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class BrowserUser:
    """Somebody at a browser. `errors`: what its console said was wrong."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.url = f"http://{address}/dashboard"
        options.setdefault("viewport", WIDE)
        self.context: BrowserContext = browser.new_context(reduced_motion="reduce", **options)
        self.context.set_default_timeout(TIMEOUT_MS)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "ERR_" not in message.text:  # a server that is away is told by the page
            self.errors.append(message.text)

    def log_in(self, token: str, user: str = "ann") -> None:
        self.page.goto(f"{self.url}/login")
        self.page.fill("#user", user)
        self.page.fill("#token", token)
        self.page.click("button[type=submit]")
        self.page.wait_for_url(f"{self.url}/")

    def open(self, path: str) -> None:
        self.page.goto(f"{self.url}{path}")

    def wait_for(self, condition: str) -> None:
        """Waits until an expression in the page is true. (Not by wait_for_function: the policy forbids eval.)"""
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"it never came true: {condition}"
            self.page.wait_for_timeout(50)

    def serious_findings(self) -> list[str]:
        """Returns what axe finds wrong with the page for people who see, hear or move otherwise."""
        if not self.page.evaluate("typeof axe !== 'undefined'"):
            self.page.evaluate(AXE.read_text())  # not as a script: the policy allows none but ours
        found = self.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:90] for node in each['nodes'][:3]]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def close(self) -> None:
        self.context.close()
