"""headgate top: shows live what each rule allows and refuses, over all processes and gateways."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headgate.cli.command_parser import Commands, command
from headgate.cli.engine_option import add_engine, server_of, url_of
from headgate.cli.full_screen import draw, full_screen
from headgate.cli.output import Output
from headgate.cli.stats import MEMORY_ERROR
from headgate.cli.text_style import Style
from headgate.cli.top_screen import LAG_S, SORTS, WINDOW_S, HotKeyRates, LimitMove, TopSnapshot, TopView, screen
from headgate.errors import CorruptState, EngineUnavailable
from headgate.rules.keys import ALL
from headgate.telemetry.decision_counts import DecisionCounts
from headgate.telemetry.hot_keys import masked_key

if TYPE_CHECKING:
    from headgate.telemetry.shared_counts import SharedCounts

REFRESH_S: Final = 1.0
HOT_RULES: Final = 5  # rules whose hot keys are read
KEYS_PER_RULE: Final = 5
MAX_CHANGES: Final = 5  # of adaptive limits


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "top",
        run,
        "watch what each rule allows and refuses, live",
        "headgate top --engine redis://host:6379/0",
        "headgate top --once --mask",
        more="It shows calls per second by rule, the hottest keys and the processes that decide, from the counts "
        "that services, programs and gateways share through Redis. Keys: q quits, s sorts, p pauses, / filters.",
    )
    parser.add_argument("--sort", choices=SORTS, default=SORTS[0], help="the order of the rules (refused)")
    parser.add_argument("--mask", action="store_true", help="hide most of each key")
    parser.add_argument("--once", action="store_true", help="print one screen and end, as in a pipe")
    add_engine(parser)


def run(args: argparse.Namespace) -> Output | int:
    from headgate.telemetry.shared_counts import SharedCounts

    server_of(args, MEMORY_ERROR)
    view = TopView(sort=args.sort)
    with SharedCounts(url_of(args), prefix=args.prefix) as counts:
        if args.json or args.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return _once(read_snapshot(counts, args.mask), view, as_json=args.json)
        return _watch(counts, view, args.mask)


def _once(snapshot: TopSnapshot, view: TopView, *, as_json: bool) -> Output | int:
    if as_json:
        rules = [{"rule": rule, **each.as_dict()} for rule, each in sorted(snapshot.rules.items())]
        keys = [key._asdict() for key in snapshot.keys]
        processes = [{"name": name, "age": age_s} for name, age_s in snapshot.processes]
        changes = [change._asdict() for change in snapshot.changes]
        values = {"rules": rules, "keys": keys, "processes": processes, "changes": changes}
        return Output({"seconds": WINDOW_S, **values, "degraded": [*snapshot.degraded]}, [])
    width, height = shutil.get_terminal_size()
    lines = screen(snapshot, view, width, max(height, 24), Style.on(sys.stdout))[:-1]
    print("\n".join(lines).rstrip())
    return 0


def read_snapshot(counts: SharedCounts, mask: bool) -> TopSnapshot:
    """Reads what one screen shows."""
    recent, late = counts.last(seconds=WINDOW_S + LAG_S), counts.last(seconds=LAG_S)
    rules = {rule: _difference(each, late.get(rule, DecisionCounts())) for rule, each in recent.items()}
    busiest = sorted(rules, key=lambda rule: _busyness(rules[rule]))[:HOT_RULES]
    keys = [key for rule in busiest for key in _hot_keys(counts, rule, mask)]
    keys.sort(key=lambda key: (-key.refused, -key.shadow, -key.calls))
    processes = [(writer.name, writer.age_s) for writer in counts.writers()]
    degraded = [writer.key for writer in counts.degraded_writers(WINDOW_S + LAG_S)]
    return TopSnapshot(_time(), rules, keys, processes, changes=_changes(counts, mask), degraded=degraded)


def _changes(counts: SharedCounts, mask: bool) -> list[LimitMove]:
    """Returns the latest changes of adaptive limits."""
    return [
        LimitMove(
            time.strftime("%H:%M:%S", time.localtime(each.at_us / 1_000_000)),
            each.change.name,
            masked_key(each.change.key) if mask and each.change.key != ALL else each.change.key,
            each.change.before,
            each.change.after,
            each.change.reason,
        )
        for each in counts.limit_changes(MAX_CHANGES)
    ]


def _difference(counts: DecisionCounts, other: DecisionCounts) -> DecisionCounts:
    return DecisionCounts(*(max(0, mine - theirs) for mine, theirs in zip(counts, other, strict=True)))


def _busyness(counts: DecisionCounts) -> tuple[int, int, int]:
    """Orders rules: those that refuse most come first, then shadows that would, then the busiest."""
    return -counts.refused, -counts.shadow_refused, -counts.calls - counts.shadow_calls


def _hot_keys(counts: SharedCounts, rule: str, mask: bool) -> Iterator[HotKeyRates]:
    """Yields the busiest and the most refused keys of a rule, live and in shadow mode."""
    calls, refused, shadow = (
        dict(counts.hot_keys(rule, kind, KEYS_PER_RULE, mask)) for kind in ("calls", "refused", "shadow_refused")
    )
    for key in refused | shadow | calls:
        live, in_shadow = refused.get(key, 0), shadow.get(key, 0)
        yield HotKeyRates(rule, key, max(calls.get(key, 0), live, in_shadow), live, in_shadow)


def _time() -> str:
    return time.strftime("%H:%M:%S")


def _watch(counts: SharedCounts, view: TopView, mask: bool) -> int:
    """Draws a screen every second, and after every key, until the user quits."""
    style = Style.on(sys.stdout)
    snapshot, read_at = TopSnapshot(_time(), {}, [], []), 0.0
    with full_screen(sys.stdout), _single_keys():
        while not view.over:
            now = time.monotonic()
            if now - read_at >= REFRESH_S and not view.paused:
                read_at = now
                try:
                    snapshot = read_snapshot(counts, mask)
                except (EngineUnavailable, CorruptState) as error:
                    snapshot = snapshot._replace(problem=str(error))
            width, height = shutil.get_terminal_size()
            draw(sys.stdout, screen(snapshot, view, width, height, style), height)
            for key in _pressed(REFRESH_S):
                view = view.on_key(key)
    return 0


@contextmanager
def _single_keys() -> Iterator[None]:
    """Hands keys over as they are pressed, without showing them; restores the terminal afterwards."""
    import termios  # only where there is a terminal of this kind
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed(timeout_s: float) -> str:
    """Returns the keys that were pressed, waiting for the first; "q" if the terminal is gone."""
    if not select.select([sys.stdin], [], [], timeout_s)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 64).decode(errors="replace") or "q"
