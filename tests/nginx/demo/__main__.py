"""python -m tests.nginx.demo [SECONDS]: a flash sale at two real nginx, one Redis and one backend.

Live in a terminal of 80 columns, line by line elsewhere. It ends with 1 if a limit did not hold.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from types import FrameType

from headgate.cli.full_screen import draw, full_screen
from headgate.cli.text_style import Style
from tests.nginx.demo import shop_servers
from tests.nginx.demo.expectations import failed_expectations
from tests.nginx.demo.flash_sale import SECONDS, GatewaySale, SaleCounts, SaleResult
from tests.nginx.demo.text_report import WIDTH, head, live, results, rows
from tests.servers import MissingComponent

LEAST, MOST = 3.0, 600.0
_FRAMES = 4  # a second


def main(words: list[str]) -> int:
    seconds = _seconds(words)
    if seconds is None:
        sys.stderr.write(f"demo-gateway: say how many seconds, from {LEAST:g} to {MOST:g}, or nothing\n")
        return 2
    before = signal.signal(signal.SIGTERM, _end)
    try:
        return _play(seconds)
    except KeyboardInterrupt:
        return 130
    except MissingComponent as error:
        sys.stderr.write(f"demo-gateway: {error}\n")
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def _seconds(words: list[str]) -> float | None:
    try:
        (seconds,) = map(float, words or [str(SECONDS)])
    except ValueError:
        return None
    return seconds if LEAST <= seconds <= MOST else None


def _play(seconds: float) -> int:
    ink = Style.on(sys.stdout)
    is_live = (
        sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and shutil.get_terminal_size().columns > WIDTH
    )
    server = shop_servers.kind().capitalize()
    _print([f"{server}, a backend and two nginx are starting; then comes a flash sale of {seconds:g} s."])
    history: list[SaleCounts] = []
    with GatewaySale(seconds) as sale:
        ending = _play_on_a_page(sale, history, ink) if is_live else _play_line_by_line(sale, ink)
        failures = failed_expectations(ending)
    if is_live:
        _print(["", *live([*history, ending.counts], seconds, ink)])
    else:
        _print(["", *head(ink), *rows(ending.counts, ink, "all")])
    _print(["", *results(ending, failures, ink)])
    return 1 if failures else 0


def _play_on_a_page(sale: GatewaySale, history: list[SaleCounts], ink: Style) -> SaleResult:
    """On a page of its own."""

    def show(counts: SaleCounts) -> None:
        history.append(counts)
        draw(sys.stdout, live(history, sale.seconds, ink), shutil.get_terminal_size().lines)

    with full_screen(sys.stdout):
        return sale.play(show, 1 / _FRAMES)


def _play_line_by_line(sale: GatewaySale, ink: Style) -> SaleResult:
    """Line by line."""

    def show(counts: SaleCounts) -> None:
        _print(rows(counts, ink, f"{counts.seconds:.0f} s"))

    _print(head(ink))
    return sale.play(show)


def _print(lines: list[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
