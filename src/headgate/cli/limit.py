"""headgate limit: what a limit means, and what its engine promises, in words."""

from __future__ import annotations

import argparse
import shutil

from headgate.engine.url import open_engine
from headgate.explain import page
from headgate.text import parse_all


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("limit", help='what a limit means: headgate limit "100/s burst 200"')
    parser.add_argument("text", help='such as "100/s", "600/minute sliding" or "10/s; 500/hour"')
    parser.add_argument(
        "--engine", help="also tell what this engine promises: redis://host/0?fallback=local&lease=100ms"
    )
    parser.add_argument("--nodes", type=int, default=1, help="how many processes share the limit (1 unless given)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    limits = parse_all(args.text)
    width = min(110, max(60, shutil.get_terminal_size((100, 24)).columns))
    engine = open_engine(args.engine, nodes=args.nodes) if args.engine else None  # asked nothing, it opens nothing
    print(page(limits, engine, args.nodes, width), end="")
    return 0
