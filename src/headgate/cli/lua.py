"""headgate lua: the scripts that run inside Redis and Valkey."""

from __future__ import annotations

import argparse
import os
from difflib import get_close_matches

from headgate.clock import SystemClock
from headgate.engine.redis.script import Script, bare, published, several, single
from headgate.engine.url import open_engine
from headgate.errors import HeadgateError, InvalidRule
from headgate.model import ALGORITHMS

VARIABLE = "HEADGATE_ENGINE"

_CALLS = {
    "rate_limiter": (
        "init MAX_PERMITS RATE [TTL]     1: a bucket of so many, RATE of them come back a second",
        "acquire N                       1: they are yours, -1: they are not",
        "delete                          1",
    ),
    "token_bucket": (
        "N     on a hash with bucket_cap and rate (or period).  1: yours, 0: not, -1: not configured",
    ),
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("lua", help="publish, list or show the Lua scripts", description=__doc__)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    publishing = verbs.add_parser("publish", help="load the scripts for gateways, and store their SHA1")
    publishing.add_argument(
        "--engine", metavar="URL", help=f"redis://host:6379/0 (or {VARIABLE} in the environment)"
    )
    publishing.set_defaults(run=_publish)

    listing = verbs.add_parser("list", help="every script: name, size in bytes, SHA1")
    listing.set_defaults(run=_list)

    showing = verbs.add_parser("show", help="the text of one script, as the server runs it")
    showing.add_argument("name", help="as headgate lua list names it")
    showing.set_defaults(run=_show)


def scripts() -> dict[str, Script]:
    """Every script by name: what is published, then what the Redis engine itself runs."""
    found = {f"published/{name}": published(name) for name in _CALLS}
    for name, algorithm in ALGORITHMS.items():
        found[f"take/{name}"] = single("take", name)
        found[f"refund/{name}"] = single("refund", name)
        if algorithm.retune is not None:
            found[f"retune/{name}"] = single("retune", name)
    found["take_all"] = several("take_all", ALGORITHMS)
    found["slots"] = bare("slots", "slots")
    return found


def _list(args: argparse.Namespace) -> int:
    for name, script in scripts().items():
        print(f"{name:<26}{len(script.text.encode()):>8,}  {script.sha}")
    return 0


def _show(args: argparse.Namespace) -> int:
    known = scripts()
    if args.name not in known:
        near = get_close_matches(args.name, known, 1, 0.4)
        hint = f"Did you mean {near[0]}?" if near else "See headgate lua list."
        raise InvalidRule(f'There is no script "{args.name}". {hint}')
    print(known[args.name].text)
    return 0


def _publish(args: argparse.Namespace) -> int:
    url = args.engine or os.environ.get(VARIABLE, "")
    if not url:
        raise InvalidRule(f"Say where to: headgate lua publish --engine redis://host:6379/0, or set {VARIABLE}.")
    if url.startswith("memory://"):
        raise InvalidRule("memory:// is this process alone: there is no server to publish to.")
    _check(url)
    # Only here is redis needed: everything else of the command line runs without it.
    from headgate.engine.redis.publish import publish

    for one in publish(url):
        print(f"{one.key} = {one.sha}")
        for call in _CALLS[one.name]:
            print(f"    EVALSHA <sha> 1 <key> {call}")
    print("A server forgets its scripts when it is restarted: publish again then.")
    return 0


def _check(url: str) -> None:
    """An engine's URL that can be read, or a sentence; never the URL itself, which may hold a password."""
    if "://" not in url:
        raise InvalidRule(
            "The engine is not a URL. Write redis://host:6379/0, or redis://user:password@host:6379/0."
        )
    try:
        open_engine(url, prefix="hg", clock=SystemClock()).close()
    except HeadgateError:
        raise
    except ValueError:
        raise InvalidRule(
            "The engine's URL cannot be read. Write redis://user:password@host:6379/0; what is special in a "
            "password, such as / or @, is written %2F or %40."
        ) from None
