"""The checks of `headgate doctor` that read something: a server, an application, a decision log, counts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from headgate.cli.application_option import ApplicationInfo
from headgate.cli.engine_option import server
from headgate.engines.url import parse_engine_url
from headgate.errors import CorruptState, EngineUnavailable, HeadgateError, InvalidRule
from headgate.operations.finding import ERROR, OK, WARNING, Finding
from headgate.operations.rulebook_findings import unmatched_rule_findings, unused_rule_findings
from headgate.operations.shared_key_findings import CallsOfRules, shared_key_findings
from headgate.rules.rule import Rulebook
from headgate.telemetry.decision_counts import NO_RULE

_grant = re.compile(r"Grant (?:it|them|these): (.*)")
_written_url = re.compile(r"Write (\S+) (?:as the engine's URL|if it is to be)")

MINUTES = 1500  # all that are kept
HOT_KEYS_S = 70  # the span of hot keys: six slices that have ended, and the current one
MAX_HOT_KEYS = 200


def check_server(args: argparse.Namespace, url: str) -> list[Finding]:
    """Probes the server, or every master of a cluster; raises EngineUnavailable if one does not answer."""
    with server(args) as engine:
        from headgate.engines.redis.server_probe import probe_servers
        from headgate.operations.server_findings import cluster_findings, server_findings

        statuses = probe_servers(engine)
    deadline = parse_engine_url(url).options.effective_deadline
    findings: list[Finding] = []
    for status in statuses:
        found = server_findings(status, args.prefix, url, deadline)
        if len(statuses) > 1:
            name = f"{status.address.host}:{status.address.port}"
            found = [each._replace(message=f"{name}: {each.message}") for each in found]
        findings += found
    return [*findings, *cluster_findings(statuses)]


def unreachable_finding(error: EngineUnavailable, url: str) -> Finding:
    """Returns the finding for a server that cannot be probed, with the line that its error names."""
    sentence, where = str(error), "the engine's URL"
    change = "redis://HOST:PORT/DB of a server that runs"
    if grant := _grant_of(sentence, url):
        change, where = grant, "on the server"
    elif written := _written_url.search(sentence):
        change = written[1]
    elif "refused the user or the password" in sentence:
        change = "redis://USER:PASSWORD@HOST:PORT/DB"
    return Finding("server", ERROR, sentence, change, where)


def unread_finding(check: str, what: str, error: HeadgateError, url: str) -> Finding:
    """Returns the finding for something that cannot be read of a server that answers."""
    grant = _grant_of(str(error), url)
    return Finding(check, WARNING, f"{what}. {error}", grant, "on the server" if grant else None)


def _grant_of(sentence: str, url: str) -> str | None:
    """Returns the ACL command of an error's sentence, with the user of the URL."""
    match = _grant.search(sentence)
    return None if match is None else match[1].replace("<user>", urlsplit(url).username or "default")


def check_application(app: ApplicationInfo, url: str) -> list[Finding]:
    """Checks whether an application has limits, where it counts, and limits in code that can never match."""
    if app.limits is None:
        message = f"{app.name} has no limits: it is not set up with headgate."
        return [Finding("application", WARNING, message, app.set_up_line, app.name)]
    findings = []
    if app.engine_url.startswith("memory:") and not url.startswith("memory:"):
        message = f"{app.name} counts in memory://, each process for itself, and not on this server."
        findings.append(Finding("application", WARNING, message, 'engine="redis://localhost:6379/0"', app.name))
    try:
        app.limits.check_code_limits(app.routes)
    except InvalidRule as error:
        for problem in str(error).split("\n"):
            where, _, sentence = problem.rpartition(": The limit ")
            message = f"The limit {sentence}" if where else problem
            findings.append(Finding("limit in code", ERROR, message, "correct this line", where or app.name))
    routes = f"{len(app.routes)} route{'' if len(app.routes) == 1 else 's'}"
    return findings or [Finding("application", OK, f"{app.name} has limits, and {routes}.", where=app.name)]


def check_routes(app: ApplicationInfo, book: Rulebook, source: str) -> list[Finding]:
    """Finds rules that match no route of an application."""
    from headgate.integrations.unreachable_limits import may_match

    def matches(rule: object) -> bool:
        return any(may_match(rule, route) for route in app.routes)  # type: ignore[arg-type]

    return unmatched_rule_findings(book, source, app.name, matches)


def check_log(paths: Sequence[str], book: Rulebook | None, source: str, proxy_setting: str) -> list[Finding]:
    """Finds unused rules and shared keys in decision logs."""
    from headgate.traffic.decision_log_keys import count_logged_keys

    logged = count_logged_keys(paths)
    name = ", ".join(paths)
    unused = (
        []
        if book is None
        else unused_rule_findings(book, source, logged.by_rule, f"{logged.calls:,} calls of {name}")
    )
    calls = CallsOfRules(logged.by_rule, name, logged.hashed)
    return [*unused, *shared_key_findings(calls, proxy_setting, book)]


def check_counts(
    args: argparse.Namespace, book: Rulebook | None, source: str, proxy_setting: str, *, quiet: bool
) -> list[Finding]:
    """Finds unused rules and shared keys in shared counts. `quiet`: says nothing if there are none."""
    from headgate.telemetry.shared_counts import SharedCounts

    try:
        with SharedCounts(args.engine, prefix=args.prefix) as shared:
            counted = shared.last(minutes=MINUTES)
            recent = shared.last(seconds=HOT_KEYS_S)
            keys = {
                rule: {each.key: each.calls for each in shared.hot_keys(rule, number=MAX_HOT_KEYS)}
                for rule in recent
            }
    except (CorruptState, EngineUnavailable) as error:
        return [unread_finding("counts", "Unused rules and shared keys are not known", error, args.engine)]
    decided = counted.keys() - {NO_RULE}
    if not decided:
        message = (
            "Nothing was counted in the last 25 hours, so unused rules and shared keys are not known. "
            "Give a decision log with --log."
        )
        return [] if quiet else [Finding("counts", OK, message)]
    unused = [] if book is None else unused_rule_findings(book, source, decided, "the counts of the last 25 hours")
    calls = {rule: found for rule, found in keys.items() if rule != NO_RULE and found}
    return [*unused, *shared_key_findings(CallsOfRules(calls, "the last minute's counts"), proxy_setting, book)]
