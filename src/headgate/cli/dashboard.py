"""headgate dashboard: serves the dashboard for an engine, where no service runs."""

from __future__ import annotations

import argparse
import json
import sys

from headgate.cli.command_parser import Commands, command
from headgate.cli.engine_option import add_engine, server_of, url_of
from headgate.enforcement.open_rulebook import PUSHED
from headgate.extras import require
from headgate.service import log_format
from headgate.service.settings import OFF, Settings, read_settings

MEMORY_ERROR = (
    "The dashboard shows what programs and gateways share through Redis; memory:// is one process alone. Give "
    "the URL of their engine, or open /dashboard at the admin address of headgate serve."
)


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "dashboard",
        run,
        "serve the page that operators keep open, where no service runs",
        "headgate dashboard --engine redis://localhost:6379/0",
        "headgate dashboard --rules rules.yaml --address 127.0.0.1:9000",
        more="It reads the counts that programs, services and gateways share through Redis, and publishes "
        "rulebooks there. headgate serve has the same page at its admin address. Secrets come from the "
        "environment: "
        "HEADGATE_ADMIN_TOKEN, HEADGATE_VIEWER_TOKEN.",
    )
    parser.add_argument(
        "--rules", default=PUSHED, metavar="FILE", help="the rulebook, if it is not the one that was pushed there"
    )
    parser.add_argument(
        "--address", default="127.0.0.1:8082", metavar="ADDRESS", help="where it listens (127.0.0.1:8082)"
    )
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    server_of(args, MEMORY_ERROR)
    flags = {"engine": url_of(args), "prefix": args.prefix, "rules": args.rules, "admin": args.address}
    settings = read_settings({**flags, "http": OFF, "grpc": OFF, "workers": "1"})
    log_format.configure_logging(settings.log, settings.log_level)
    require("headgate dashboard", "service", "granian", "msgspec", "prometheus_client")
    from headgate.service.supervisor import run as run_service

    completed = settings.with_secrets()
    token = None if settings.admin_token else completed.admin_token
    return run_service(completed, lambda: _print_address(completed, token, as_json=args.json))


def _print_address(settings: Settings, token: str | None, *, as_json: bool) -> None:
    """Prints where the page is, and the token if it was generated."""
    scheme = "http" if settings.tls_cert is None else "https"
    url = f"{scheme}://{settings.admin}/dashboard/"
    if as_json:
        print(json.dumps({"dashboard": url, "admin_token": token}))
    else:
        hint = f"the token {token}" if token else "the token that was set"
        print(f"The dashboard of {settings.engine_without_password}: {url} with {hint}")
    sys.stdout.flush()
