"""headgate limit: explains in words what a limit means, and what its engine promises."""

from __future__ import annotations

import argparse
import shutil

from headgate.cli.command_parser import Commands, command, whole_number
from headgate.cli.output import Output
from headgate.engines.url import KeywordOptions, build_async_engine, parse_engine_url
from headgate.explain import explain_limits, guarantees
from headgate.limit_syntax import parse_all


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "limit",
        run,
        "explain a limit, and what its engine guarantees",
        'headgate limit "100/s burst 200"',
        'headgate limit "10/s; 500/hour" --engine "redis://host/0?fallback=local" --nodes 4',
    )
    parser.add_argument("text", help='such as "100/s", "600/minute sliding" or "10/s; 500/hour"')
    parser.add_argument(
        "--engine",
        metavar="URL",
        help="also explain what this engine guarantees: redis://host/0?fallback=local&prefetch=100ms",
    )
    parser.add_argument(
        "--nodes",
        type=whole_number(1),
        metavar="N",
        help="how many processes share the limit (default: nodes of the engine's URL, or 1)",
    )


def run(args: argparse.Namespace) -> Output:
    limits = parse_all(args.text)
    width = min(110, max(60, shutil.get_terminal_size((100, 24)).columns))
    url = parse_engine_url(args.engine, keywords=KeywordOptions()) if args.engine else None
    engine = None if url is None else build_async_engine(url)  # it connects only on the first request
    nodes = args.nodes or (None if url is None else url.options.nodes) or 1
    document = [
        {"limit": limit.text, "algorithm": limit.algorithm}
        | {"explained": dict((*limit.explain(), *guarantees(engine, limit, nodes)))}
        for limit in limits
    ]
    return Output({"limits": document}, [explain_limits(limits, engine, nodes, width).removesuffix("\n")])
