"""headgate init: looks at a project, and proposes a rulebook in shadow mode and the lines to add.

It reads files, and imports and runs nothing of the project. It writes one file, the rulebook: if --yes is given,
or the question on the terminal is answered with yes, and only if no file has that name. Applications are not
changed: the lines to add are a unified diff.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headgate.cli.command_parser import Commands, Misuse, command
from headgate.cli.output import DONE, NEGATIVE, Output
from headgate.cli.project.application import FoundApplication, PythonFindings, Route
from headgate.cli.project.files import MAX_FILES, find_files, read_source
from headgate.cli.project.find_applications import read_python_files
from headgate.cli.project.find_routes import kind_of
from headgate.cli.project.find_services import NginxFile, RedisAddress, find_nginx, find_redis
from headgate.cli.project.proposed_lines import (
    EXTRAS,
    Wiring,
    added_lines,
    can_be_written,
    proposed_diff,
    shows_password,
)
from headgate.cli.project.proposed_rules import proposed_rulebook, proposed_task_rulebook
from headgate.errors import InvalidRule, InvalidRulebook
from headgate.rules import load

_SUFFIXES = (".yaml", ".yml")
_MAX_SHOWN = 20
_NOTHING_FOUND = (
    "no application of FastAPI, Flask, Django, aiohttp, Starlette, Quart, Litestar, plain ASGI or WSGI, or Celery "
    "in *.py; no nginx in *.conf; no Redis or Valkey in compose files, .env files and URLs in the code"
)


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "init",
        run,
        "look at a project, and propose a rulebook in shadow mode and the lines to add",
        "headgate init",
        "headgate init services/api --yes",
        more="It imports and runs nothing of the project. It writes one file, the rulebook, and only after a yes: "
        "to its question on a terminal, or by --yes. A file that exists is left alone. The lines to add are a "
        "unified diff: pipe the output to git apply. The exit code is 3 if nothing was written for lack of a yes.",
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="the project (default: this folder)")
    parser.add_argument(
        "--rules", default="rules.yaml", metavar="FILE", help="the rulebook to write, in that folder"
    )
    parser.add_argument("--yes", action="store_true", help="write the rulebook without a question")


class Project(NamedTuple):
    """Findings in a folder."""

    folder: Path
    python: PythonFindings
    redis: list[RedisAddress]
    nginx: list[NginxFile]
    complete: bool

    @property
    def special_routes(self) -> list[Route]:
        """The routes that get a rule of their own, or none."""
        return [route for route in self.python.routes if kind_of(route) is not None]

    @property
    def has_only_tasks(self) -> bool:
        """Returns whether there are tasks to limit, and no requests."""
        applications = self.python.applications
        return bool(applications) and all(each.framework == "Celery" for each in applications) and not self.nginx

    @property
    def is_empty(self) -> bool:
        return not self.python.applications and not self.redis and not self.nginx


def run(args: argparse.Namespace) -> Output:
    folder = Path(args.folder)
    if not folder.is_dir():
        raise Misuse(f"{folder} is no folder. Name the project's folder, such as {args.called} services/api.")
    target = folder / args.rules
    if target.suffix.lower() not in _SUFFIXES:
        raise Misuse(f"{args.rules}: the rulebook is written as YAML: name it {Path(args.rules).stem}.yaml.")
    project = _read(folder)
    exists = target.exists() or target.is_symlink()
    text = (
        proposed_task_rulebook(has_redis=bool(project.redis))
        if project.has_only_tasks
        else proposed_rulebook(project.python.applications, project.python.routes, has_redis=bool(project.redis))
    )
    every_diff = _diffs(project, args.rules)
    diffs = [diff for _, diff in every_diff if not shows_password(diff)]
    steps = [*_steps_by_hand(every_diff), *_steps(project, args.rules)]
    document = _document(project, args.rules, text, diffs, steps)
    lines = [
        *_found_lines(project),
        "",
        *_rulebook_lines(target, text, exists=exists),
        *_diff_lines(diffs),
        *steps,
    ]
    if exists:
        return Output(document | {"written": False, "exists": True}, lines, DONE)
    document |= {"exists": False}
    if not args.yes and not args.json and sys.stdin.isatty() and sys.stdout.isatty():
        Output(None, [*lines, ""]).write(as_json=False)
        lines = []
        args.yes = _confirm(f"Write {target}? [y/N] ")
    if not args.yes:
        how = f"{target} was not written: say --yes to write it, or run this on a terminal and answer y."
        return Output(document | {"written": False}, [*lines, *([""] if lines else []), (how, "yellow")], NEGATIVE)
    _write_new(target, text)
    return Output(
        document | {"written": True}, [*lines, *([""] if lines else []), (f"wrote {target}", "green")], DONE
    )


def _read(folder: Path) -> Project:
    files = find_files(folder)
    python = read_python_files(folder, files.python)
    redis = find_redis(folder, files, python.redis_urls)
    return Project(folder, python, redis, find_nginx(folder, files.nginx), files.complete)


def _confirm(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _write_new(path: Path, text: str) -> None:
    """Writes a file that does not exist: one that appears meanwhile is not replaced."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidRule(f"{path} cannot be written: {error.strerror or error}.") from error


def _found(project: Project) -> Iterator[tuple[str, str]]:
    for app in project.python.applications:
        name = (
            "settings"
            if app.framework == "Django"
            else f"application {app.target}"
            if app.target
            else "application without a name"
        )
        name = "Celery" if app.framework == "Celery" else f"{app.framework} {name}"
        yield str(app.place), f"{name}{', limited by headgate already' if app.limited else ''}"
    for route in project.special_routes:
        yield str(route.place), f"{'/'.join(route.methods) or 'route'} {route.path}"
    for address in project.redis:
        yield str(address.place), f"{address.what}: {address.shown_url}"
    for nginx in project.nginx:
        yield str(nginx.place), f"nginx{f', which passes requests on to {nginx.backend}' if nginx.backend else ''}"
        if nginx.limits is not None:
            yield str(nginx.limits), f"limits of nginx: headgate rules import {nginx.limits.file} translates them"


def _found_lines(project: Project) -> list[Any]:
    found = list(_found(project))
    width = max((len(place) for place, _ in found), default=0) + 2
    lines: list[Any] = [f"{place:<{width}}{what}" for place, what in found[:_MAX_SHOWN]]
    if len(found) > _MAX_SHOWN:
        lines.append(f"and {len(found) - _MAX_SHOWN} more (--json lists all)")
    if project.is_empty:
        lines.append(f"Found nothing in {project.folder}: {_NOTHING_FOUND}.")
    if project.python.unreadable:
        lines.append(
            (f"not read, because it is not valid Python: {', '.join(project.python.unreadable)}", "yellow")
        )
    if not project.complete:
        lines.append(
            (f"More than {MAX_FILES} files: the rest was not read. Name a folder further down.", "yellow")
        )
    return lines


def _rulebook_lines(target: Path, text: str, *, exists: bool) -> list[Any]:
    if not exists:
        return [(f"{target}, which refuses nobody:", "bold"), "", text]
    try:
        number = len(load.read(target).rules)
    except InvalidRulebook as error:
        return [
            (f"{target} exists, and was left alone. It is no valid rulebook: {error}", "yellow"),
            "Name another file, such as --rules limits.yaml",
            "",
        ]
    rules = f"{number} rule{'' if number == 1 else 's'}"
    return [f"{target} exists, and was left alone: a valid rulebook with {rules}.", ""]


def _diffs(project: Project, rulebook: str) -> list[tuple[str, str]]:
    """Returns the lines to add, for every file with an application, and the file."""
    wiring = Wiring(
        rulebook,
        next(iter(project.redis), None),
        next((n for n in project.nginx if n.backend), None),
        of_tasks=project.has_only_tasks,
    )
    by_file: dict[str, list[FoundApplication]] = defaultdict(list)
    for application in project.python.applications:
        if can_be_written(application):
            by_file[application.place.file].append(application)
    folder = _folder_below_this(project.folder)
    return [
        (file, proposed_diff(read_source(project.folder / file), applications, wiring, folder))
        for file, applications in by_file.items()
    ]


def _folder_below_this(folder: Path) -> str:
    """Returns the path from this folder to the project's, with a slash behind it; "" if it is not below."""
    here, there = Path.cwd(), folder.resolve()
    below = there.is_relative_to(here) and there != here
    return f"{there.relative_to(here).as_posix()}/" if below else ""


def _steps_by_hand(diffs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns what is to be added to files whose lines are not shown."""
    return [
        f"* {file}: add these lines by hand, because the lines around them have a password: "
        f"{' | '.join(added_lines(diff))}"
        for file, diff in diffs
        if shows_password(diff)
    ]


def _diff_lines(diffs: Sequence[str]) -> list[Any]:
    return [("lines to add (pipe this output to git apply):", "bold"), "", "\n".join(diffs)] if diffs else []


def _steps(project: Project, rulebook: str) -> list[str]:
    """Returns what remains to be done by hand, one sentence each."""
    applications = project.python.applications
    extras = sorted(
        {EXTRAS[each.framework] for each in applications if each.framework in EXTRAS}
        | {"yaml"}
        | ({"redis"} if project.redis else set())
    )
    steps = [f"pip install 'headgate[{','.join(extras)}]'"]
    if not project.redis:
        steps.append(
            'Without Redis every process counts for itself. For several: engine="redis://localhost:6379/0"'
        )
    elif project.redis[0].has_password and project.redis[0].variable is None:
        steps.append("The URL has a password: put it into the environment variable HEADGATE_ENGINE.")
    for each in applications:
        if each.framework == "Celery":
            rules = "" if project.has_only_tasks else "rules limit requests. "
            steps.append(
                f'{each.place}: {rules}Limit a task by @limit("100/minute", key="user_id") below @app.task; key '
                "names an argument of the task."
            )
        elif not each.target and not each.limited:
            steps.append(f"{each.place}: give the application a name, and run this again.")
    web = [each for each in applications if each.framework != "Celery"]
    for nginx in project.nginx:
        if not web:
            steps.append(f"{nginx.place}: headgate nginx conf {rulebook} prints the lines for nginx.")
        elif nginx.backend and not nginx.forwards_address:
            steps.append(
                f"{nginx.place}: add proxy_set_header X-Forwarded-For $remote_addr; or all clients share one limit"
            )
    if len(web) > 1:
        steps.append(f"{len(web)} applications share this rulebook. For one each: headgate init FOLDER")
    starts = "workers start" if project.has_only_tasks else "application starts"
    steps.append(f"{rulebook} is looked up in the folder where the {starts}.")
    return [f"* {step}" for step in steps]


def _document(
    project: Project, rulebook: str, text: str, diffs: Sequence[str], steps: Sequence[str]
) -> dict[str, Any]:
    return {
        "found": [{"where": where, "what": what} for where, what in _found(project)],
        "unreadable": project.python.unreadable,
        "complete": project.complete,
        "file": rulebook,
        "rulebook": text,
        "diff": "\n".join(diffs),
        "steps": [step.removeprefix("* ") for step in steps],
    }
