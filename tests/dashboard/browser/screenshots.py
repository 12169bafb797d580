"""Takes the pictures of the documentation: python -m tests.dashboard.browser.screenshots docs/images"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.dashboard.browser.browser_harness import BrowserUser, chromium
from tests.servers.redis_server import free_port
from tests.traffic.sample_logs import combined_log, scan, visits

ROOT = Path(__file__).parents[3]
TOKEN = "a token for pictures 0123456789"
RUSH_AFTER_S = 41.0  # of the demo's shop, whose rush begins after 33 s


def main(folder: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    words = ["scripts/demo_dashboard.py", "--token", TOKEN, "--admin", address]
    demo = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        demo.stdout.readline()
        began = time.monotonic()
        with chromium() as browser:
            operator = BrowserUser(browser, address)
            operator.log_in(TOKEN)
            operator.page.wait_for_timeout(1000 * (RUSH_AFTER_S - (time.monotonic() - began)))
            take(operator, folder / "dashboard-overview.png")
            operator.open("/rule?name=buy")
            operator.page.wait_for_timeout(3500)
            take(operator, folder / "dashboard-rule.png")
            operator.open("/rules")
            text = operator.page.input_value("#text")
            operator.page.fill("#text", text.replace("limit: 2/s burst 5", "limit: 4/s burst 8"))
            operator.page.click("#preview-button")
            operator.page.wait_for_selector("#preview .fact", timeout=60_000)
            take(operator, folder / "dashboard-rules.png")
            take_number(operator, folder / "dashboard-number.png")
            operator.close()
    finally:
        demo.terminate()
        demo.wait(20)


def take_number(operator: BrowserUser, path: Path) -> None:
    """Takes the picture of a log's frontier, with the handle below its line."""
    with tempfile.TemporaryDirectory() as folder:
        log = combined_log(Path(folder) / "access.log", [*visits(600), *scan(6000.0, 1500, per_second=5)])
        operator.open("/number")
        operator.page.set_input_files("#log", log)
        operator.page.click("#start")
        operator.page.wait_for_selector("#frontier .handle", timeout=120_000)
    operator.page.focus("#frontier .handle")
    for _ in range(3):
        operator.page.keyboard.press("ArrowDown")
    operator.page.set_viewport_size({"width": 1280, "height": 1700})
    operator.page.locator("#result section").nth(1).screenshot(path=path)


def take(operator: BrowserUser, path: Path) -> None:
    operator.page.screenshot(path=path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
