"""headgate demo: shows the flash sale, live in a terminal, or as plain lines elsewhere."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from headgate.cli.command_parser import Commands, command
from headgate.cli.demo_chart import chart, summary
from headgate.cli.flash_sale import PHASES, SECONDS, FlashSale
from headgate.cli.full_screen import draw, full_screen
from headgate.cli.output import Output
from headgate.cli.text_style import Style

FRAMES_PER_S = 15
MAX_SECONDS = 3600.0


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "demo",
        run,
        "watch a flash sale: the same calls under seven algorithms",
        "headgate demo --seconds 10",
        "headgate demo --fast",
        more="It runs live in a terminal, and prints plain lines elsewhere.",
    )
    parser.add_argument("--fast", action="store_true", help="print the last picture at once")
    parser.add_argument("--seconds", type=_seconds, help=f"how long it takes (default {SECONDS})")
    parser.add_argument("--no-color", action="store_true", help="no colours (NO_COLOR works too)")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 and up to {MAX_SECONDS:g}, not {text!r}")
    return seconds


def run(args: argparse.Namespace) -> Output | int:
    sale, stdout = FlashSale(), sys.stdout
    if args.json:
        sale.play_until(SECONDS)
        return Output(_document(sale))
    style = Style.on(stdout, color=not args.no_color)
    interrupted = False
    try:
        if args.fast:
            sale.play_until(SECONDS)
        elif stdout.isatty():
            _show(sale, args.seconds or SECONDS, style)
        else:
            _print_phases(sale, args.seconds)
    except KeyboardInterrupt:
        interrupted = True
    width, height = shutil.get_terminal_size((100, 24))
    lines = summary(sale, width)
    print(*chart(sale, width, height - len(lines) - 1, style), "", *lines, sep="\n")
    return 130 if interrupted else 0


def _show(sale: FlashSale, seconds: float, style: Style) -> None:
    """Draws the sale live: it has its own clock, which is kept in step with ours."""
    stdout, start = sys.stdout, time.monotonic()
    with full_screen(stdout):
        while not sale.is_over:
            sale.play_until((time.monotonic() - start) / seconds * SECONDS)
            width, height = shutil.get_terminal_size()
            draw(stdout, chart(sale, width, height, style), height)
            time.sleep(1 / FRAMES_PER_S)
        time.sleep(min(2, seconds / 10))


def _print_phases(sale: FlashSale, seconds: float | None) -> None:
    """Prints the phases line by line, for logs; waits only if `seconds` is given."""
    for phase, next_phase in zip(PHASES, [*PHASES[1:], None], strict=True):
        print(f"{phase.at:5.1f} s  {phase.name}: {phase.calls} calls a second", flush=True)
        end = next_phase.at if next_phase else SECONDS
        if seconds is not None:
            time.sleep((end - phase.at) / SECONDS * seconds)
        sale.play_until(end)
    print(f"{SECONDS:5.1f} s  over", end="\n\n", flush=True)


def _document(sale: FlashSale) -> dict[str, object]:
    gates = [
        {"gate": gate.name, "limit": gate.limit, "passed": gate.passed, "delayed": gate.delayed}
        | {"refused": gate.refused, "most_in_2s": gate.peak}
        for gate in sale.gates
    ]
    return {"seconds": SECONDS, "calls": sale.calls, "buyers": len(sale.buyers), "gates": gates}
