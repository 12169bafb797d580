"""headgate serve: runs the check service, for gateways and programs in other languages."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headgate.cli.command_parser import Commands, command
from headgate.extras import ENVOY_MODULES, INSTALL_ENVOY, missing, require
from headgate.service import log_format, sample_rules
from headgate.service.settings import ENV_PREFIX, Settings, flag_name, read_settings, settings_table

JSON = "json"


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "serve",
        _serve,
        "run the check service: gateways call it over HTTP, and Envoy over gRPC",
        "headgate serve",
        "headgate serve --rules rules.yaml --engine redis://localhost:6379/0 --workers 2",
        more="Without arguments it counts in memory, uses a sample rulebook and prints what to try. Everything "
        "can also be set in the environment (HEADGATE_WORKERS=2) or in a TOML file (workers = 2).",
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings")
    for setting in settings_table():
        help_text = f"{setting.about} ({setting.default})" if setting.default else setting.about
        parser.add_argument(
            flag_name(setting.name), dest=f"set_{setting.name}", metavar=setting.metavar, help=help_text
        )


def _serve(args: argparse.Namespace) -> int:
    settings = read_settings(
        {setting.name: getattr(args, f"set_{setting.name}") for setting in settings_table()}, config=args.config
    )
    log_format.configure_logging(settings.log, settings.log_level)
    require("headgate serve", "service", "granian", "msgspec", "prometheus_client")
    if settings.grpc is not None:
        hint = f" To answer HTTP only, set grpc to off; it is {settings.grpc}."
        require("Answering Envoy over gRPC", "envoy", *ENVOY_MODULES, hint=hint)
    from headgate.service.supervisor import run

    completed = settings.with_secrets()
    token = None if settings.admin_token or settings.admin is None else completed.admin_token
    return run(completed, lambda: _print_addresses(completed, token, as_json=args.json or settings.log == JSON))


def logs_json(words: Sequence[str]) -> bool:
    """Returns whether a command line runs `serve` with its log in JSON.

    Never raises: the errors of an invalid command line or settings file are reported elsewhere.
    """
    if not words or words[0] != "serve":
        return False
    log_setting = _option_value(words, "--log") or os.environ.get(f"{ENV_PREFIX}LOG")
    config = _option_value(words, "--config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
    if log_setting is None and config:
        with suppress(OSError, ValueError, RecursionError):
            log_setting = tomllib.loads(Path(config).read_text("utf-8")).get("log")
    return log_setting == JSON


def _option_value(words: Sequence[str], option: str) -> str | None:
    """Returns the last value that a command line gives to an option."""
    last = None
    for word, next_word in zip(words, [*words[1:], None], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            last = value if equals else next_word
    return last


def _print_addresses(settings: Settings, token: str | None, *, as_json: bool) -> None:
    """Prints the addresses, a request to try, and the admin token if it was generated."""
    scheme = "http" if settings.tls_cert is None else "https"
    url = None if settings.http is None else f"{scheme}://{settings.http}"
    admin = None if settings.admin is None else f"{scheme}://{settings.admin}"
    if as_json:
        document = {
            "http": url,
            "grpc": settings.grpc and str(settings.grpc),
            "admin": admin,
            "admin_token": token,
        }
        print(json.dumps(document))
    else:
        print(f"headgate serves {settings.rules or 'a sample rulebook'} on {settings.engine_without_password}.")
        if url is not None:
            print(f"  HTTP   {url}      {url}/openapi.json describes the API")
        if settings.grpc is not None:
            print(f"  gRPC   {settings.grpc}      Envoy's rate limit and quota services")
        elif missing(*ENVOY_MODULES):
            print(f"  gRPC   off      Envoy's rate limit and quota services need: {INSTALL_ENVOY}")
        if admin is not None:
            token_hint = f"with the token {token}" if token else "with the token that was set"
            print(f"  admin  {admin}      {token_hint}; a browser shows the dashboard there")
        if url is not None and not settings.rules:
            print(f"Try it:\n  {sample_rules.example_command(url)}")
    sys.stdout.flush()
