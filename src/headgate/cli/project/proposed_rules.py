"""Writes a rulebook in shadow mode for what was found in a project, with the reasons as comments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headgate.cli.project.application import FoundApplication, Route
from headgate.cli.project.find_routes import ACCOUNT, HEALTH, LOGIN, kind_of
from headgate.rules.serialization import yaml_text

LOGIN_LIMIT = "10/minute"
ACCOUNT_LIMIT = "20/hour"
CLIENT_LIMIT = "10/s burst 100"
_MAX_PATHS = 40


_OPENING = (
    "Proposed by headgate init. In shadow mode: it counts and reports, and refuses nobody.\n"
    "To enforce a rule, remove its line mode: shadow. The numbers are guesses:\n"
)


def proposed_rulebook(
    applications: Sequence[FoundApplication], routes: Sequence[Route], *, has_redis: bool
) -> str:
    """Returns the rulebook as YAML; every rule is in shadow mode."""
    rules: list[dict[str, Any]] = []
    comments = {
        "": f"{_OPENING}headgate suggest access.log finds them in your log; headgate stats shows what each rule "
        "would refuse.\n"
    }
    for kind, limit, reason in (
        (LOGIN, LOGIN_LIMIT, "Passwords, tokens and codes are guessed here."),
        (ACCOUNT, ACCOUNT_LIMIT, "Accounts are made, or mail is sent, here."),
    ):
        found = [route for route in routes if kind_of(route) == kind]
        if found:
            rules.append(_rule(kind, {"method": "POST", "path": _paths(found)}, "address", limit))
            comments[kind] = "\n".join([reason, *_places(found)])
    health = [route for route in routes if kind_of(route) == HEALTH]
    spared = {"path": _paths(health)} if health else None
    if any(application.authenticates_users for application in applications):
        rules.append(_rule("per-user", {"user": True}, "user", CLIENT_LIMIT, spared))
        rules.append(_rule("per-address", {"user": False}, "address", CLIENT_LIMIT, spared))
        comments["per-user"] = "All requests of a user who is logged in."
        comments["per-address"] = "All requests of everybody else."
    else:
        rules.append(_rule("per-address", None, "address", CLIENT_LIMIT, spared))
        comments["per-address"] = "All requests of one client."
    document: dict[str, Any] = {"defaults": {"fallback": "local"}} if has_redis else {}
    return yaml_text(document | {"rules": rules}, comments)


def proposed_task_rulebook(*, has_redis: bool) -> str:
    """Returns the rulebook of a task queue as YAML: its rule is in shadow mode."""
    comments = {
        "": f"{_OPENING}headgate stats shows what each rule would hold up.\n",
        "per-task": "All calls of one task, of all workers together.\n"
        "A call that is too early waits for its turn; an argument is argument.NAME.",
    }
    rule = {"name": "per-task", "key": "task", "missing": "one", "limit": CLIENT_LIMIT, "mode": "shadow"}
    document: dict[str, Any] = {"attributes": ["task", "queue"]}
    if has_redis:
        document["defaults"] = {"fallback": "local"}
    return yaml_text(document | {"rules": [rule]}, comments)


def _rule(
    name: str, when: dict[str, Any] | None, key: str, limit: str, spared: dict[str, Any] | None = None
) -> dict[str, Any]:
    fields = {"name": name, "when": when, "except": spared, "key": key}
    missing = {"missing": "skip"} if key == "user" else {}
    return {name: value for name, value in fields.items() if value} | missing | {"limit": limit, "mode": "shadow"}


def _paths(routes: Iterable[Route]) -> str | list[str]:
    paths = list(dict.fromkeys(route.path for route in routes))[:_MAX_PATHS]
    return paths[0] if len(paths) == 1 else paths


def _places(routes: Sequence[Route]) -> list[str]:
    return [f"  {'/'.join(route.methods) or 'any method'} {route.path}, {route.place}" for route in routes]
