"""Judges what servers reported of themselves: version, role, mode, rights, memory, clock, scripts, round trips.

The probe is engines/redis/server_probe.py. This module opens no connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from headgate.algorithms.limit import SECOND
from headgate.operations.finding import ERROR, OK, WARNING, Finding, Level

if TYPE_CHECKING:
    from headgate.engines.redis.server_probe import ServerStatus

OLDEST_TESTED: Final = (7, 0)  # of Redis; every Valkey is newer
OLDEST_POSSIBLE: Final = (5, 0)  # an older one lets no script write after it has read TIME
MAX_CLOCK_DIFFERENCE_US: Final = SECOND  # to this machine
MAX_NODE_DIFFERENCE_US: Final = 100_000  # between the nodes of a cluster
MAX_MEMORY_SHARE: Final = 0.9
MAX_DEADLINE_SHARE: Final = 0.5  # of the deadline that an ordinary round trip may take
SLOW_ROUND_TRIP_US: Final = 5_000

_SYNCHRONIZE = "timedatectl set-ntp true"

# Why a server refuses every decision, by the code of its reply, and the line that ends it.
_REFUSALS: Final = {
    "OOM": ("its memory is full", "CONFIG SET maxmemory BYTES"),
    "MISCONF": (
        "it cannot save to its disk; its log says why",
        "CONFIG SET stop-writes-on-bgsave-error no",
    ),
    "NOREPLICAS": ("it has too few replicas", "CONFIG SET min-replicas-to-write 0"),
    "LOADING": ("it is still loading its data", "wait until INFO persistence shows loading:0"),
    "BUSY": ("a script runs and does not end", "SCRIPT KILL"),
    "CLUSTERDOWN": ("its cluster does not serve all slots", "redis-cli --cluster fix HOST:PORT"),
    "MASTERDOWN": ("it is a replica without its master", "REPLICAOF NO ONE"),
}


def server_findings(status: ServerStatus, prefix: str, url: str, deadline: float) -> list[Finding]:
    """Judges one server. `deadline` is that of the programs that use the URL, in seconds."""
    return [
        _version(status),
        *_role(status),
        _mode(status, url),
        _rights(status, prefix),
        *_refusal(status, url),
        _scripts(status),
        *_memory(status),
        _clock(status),
        _latency(status, url, deadline),
    ]


def cluster_findings(statuses: Sequence[ServerStatus]) -> list[Finding]:
    """Judges the masters of a cluster together: whether their clocks agree."""
    clocks = [(status.clock_ahead_us, status) for status in statuses if status.clock_ahead_us is not None]
    if len(clocks) < 2:
        return []
    (low, slow), (high, fast) = min(clocks, key=lambda each: each[0][0]), max(clocks, key=lambda each: each[0][0])
    apart_us = high[0] - low[0] - high[1] - low[1]
    if apart_us <= MAX_NODE_DIFFERENCE_US:
        return [Finding("cluster clocks", OK, f"The clocks of {len(clocks)} masters agree.", where=None)]
    message = (
        f"The clock of {_where(fast)} is {_span(apart_us)} ahead of that of {_where(slow)}: after a failover "
        "or a move of slots, counts begin late or end early."
    )
    return [Finding("cluster clocks", WARNING, message, _SYNCHRONIZE, f"on {_where(slow)} and {_where(fast)}")]


def _where(status: ServerStatus) -> str:
    address = status.address
    return address.path or f"{address.host}:{address.port}"


def _version(status: ServerStatus) -> Finding:
    where, numbers = _where(status), status.version_numbers
    if status.version is None or numbers is None:
        return Finding("version", WARNING, "The server does not say its version.", _grant(status, ["info"]), where)
    product, number = status.version
    if product == "Redis" and numbers < OLDEST_POSSIBLE:
        message = f"Redis {number} lets no script write after it has read the time: nothing can be decided."
        return Finding("version", ERROR, message, "install Redis 7.0 or newer, or Valkey", where)
    if product == "Redis" and numbers < OLDEST_TESTED:
        message = f"Redis {number} is older than 7.0, the oldest that headgate is tested with."
        return Finding("version", WARNING, message, "install Redis 7.0 or newer, or Valkey", where)
    return Finding("version", OK, f"{product} {number}", where=where)


def _role(status: ServerStatus) -> list[Finding]:
    if status.role != "replica":
        return []
    info = status.info or {}
    master = f"{info['master_host']}:{info['master_port']}" if "master_host" in info else "MASTER:6379"
    message = "The server is a replica and takes no writes, so it decides nothing."
    return [Finding("role", ERROR, message, f"redis://{master}/{status.address.db}", "the engine's URL")]


def _mode(status: ServerStatus, url: str) -> Finding:
    where = _where(status)
    wants_cluster = "+cluster:" in url
    if status.mode == "cluster" and not wants_cluster:
        scheme = "rediss" if status.address.tls else "redis"
        message = (
            "The server is a node of a cluster, and the URL is that of a single server: most keys are refused."
        )
        return Finding("cluster mode", ERROR, message, f"{scheme}+cluster://{where}", "the engine's URL")
    if status.mode == "sentinel":
        message = "The server is a sentinel: it keeps no counts."
        return Finding("cluster mode", ERROR, message, f"redis+sentinel://{where}/MASTER_NAME", "the engine's URL")
    if status.mode is None:
        return Finding(
            "cluster mode", WARNING, "The server does not say its mode.", _grant(status, ["info"]), where
        )
    single = "a single server, as the URL says"
    text = "a node of a cluster, as the URL says" if wants_cluster else single
    return Finding("cluster mode", OK, text, where=where)


def _grant(status: ServerStatus, commands: Sequence[str], keys: str | None = None) -> str:
    words = [*(f"+{name}" for name in commands), *([f"~{keys}"] if keys else [])]
    return f"ACL SETUSER {status.user} {' '.join(words)}"


def _rights(status: ServerStatus, prefix: str) -> Finding:
    where, missing = _where(status), status.missing_rights
    keys = f"{prefix}2:*" if status.keys_denied else None
    if not missing and keys is None:
        return Finding("rights", OK, f'The user "{status.user}" may do what decisions need.', where=where)
    parts = [f"run {', '.join(missing)}"] * bool(missing) + [f"use the keys {keys}"] * bool(keys)
    message = f'The user "{status.user}" may not {" or ".join(parts)}.'
    return Finding("rights", ERROR, message, _grant(status, missing, keys), where)


def _refusal(status: ServerStatus, url: str) -> list[Finding]:
    """Judges the reply by which a server refuses every decision, whatever its user may do."""
    code, where = (status.refusal or "").partition(" ")[0], _where(status)
    if status.refusal is None or (code == "OOM" and _used_share(status.info)):  # the memory says that
        return []
    if code == "CLUSTERDOWN" and "+cluster:" not in url:
        return []
    if code == "ERR":
        message = f"The server has no database {status.address.db}: {status.refusal}."
        return [Finding("database", ERROR, message, f"redis://{where}/0", "the engine's URL")]
    reason, change = _REFUSALS[code]
    return [Finding("refusal", ERROR, f"The server decides nothing: {reason} ({status.refusal}).", change, where)]


def _used_share(info: Mapping[str, str] | None) -> float:
    """Returns the share of maxmemory that is used; 0 if it is not set, or not known."""
    maximum = int((info or {}).get("maxmemory", 0))
    return int((info or {}).get("used_memory", 0)) / maximum if maximum else 0.0


def _scripts(status: ServerStatus) -> Finding:
    where = _where(status)
    if "script|load" in status.missing_rights:
        message = "No script can be loaded: the right is missing."
        return Finding("scripts", ERROR, message, _grant(status, ["script|load"]), where)
    if status.script_error is not None:
        message = f"The server loads no script: {status.script_error}."
        return Finding("scripts", ERROR, message, "SCRIPT LOAD 'return 1'", f"try it on {where}")
    return Finding("scripts", OK, "The script of a decision can be loaded.", where=where)


def _memory(status: ServerStatus) -> list[Finding]:
    where, info = _where(status), status.info
    if info is None or "maxmemory_policy" not in info:
        message = f'Not known: the user "{status.user}" may not read the memory settings.'
        return [Finding("eviction", WARNING, message, _grant(status, ["info"]), where)]
    policy, maximum = info["maxmemory_policy"], int(info.get("maxmemory", 0))
    evicted = int(info.get("evicted_keys", 0))
    findings = [_eviction(policy, maximum, evicted, where)]
    used, share = int(info.get("used_memory", 0)), _used_share(info)
    refuses = (status.refusal or "").startswith("OOM")
    if share > MAX_MEMORY_SHARE or refuses:
        message = f"{share:.0%} of maxmemory are used: " + (
            "the server refuses every decision."
            if refuses
            else "a full server refuses new counts."
            if policy == "noeviction"
            else "a full server deletes counts."
        )
        change = f"CONFIG SET maxmemory {2 * max(maximum, used)}"
        findings.append(Finding("memory", ERROR if refuses else WARNING, message, change, where))
    return findings


def _eviction(policy: str, maximum: int, evicted: int, where: str) -> Finding:
    if policy == "noeviction":
        return Finding("eviction", OK, "maxmemory-policy is noeviction: no count is deleted early.", where=where)
    if not maximum:
        return Finding("eviction", OK, f"maxmemory is not set, so {policy} deletes nothing.", where=where)
    level: Level = ERROR if policy.startswith("allkeys") else WARNING
    lost = f" {evicted:,} keys were evicted since it started." if evicted else ""
    what = (
        "counts, overrides and the pushed rulebook"
        if policy.startswith("allkeys")
        else "counts, and a count that was deleted begins anew"
    )
    message = f"maxmemory-policy is {policy}: a full server deletes {what}.{lost}"
    return Finding("eviction", level, message, "CONFIG SET maxmemory-policy noeviction", where)


def _clock(status: ServerStatus) -> Finding:
    where = _where(status)
    if status.clock_ahead_us is None:
        message = "Not known: the server's clock could not be read."
        return Finding("clock", WARNING, message, _grant(status, ["time"]), where)
    ahead_us, error_us = status.clock_ahead_us
    if abs(ahead_us) - error_us <= MAX_CLOCK_DIFFERENCE_US:
        return Finding("clock", OK, "The server's clock agrees with that of this machine.", where=where)
    direction = "ahead of" if ahead_us > 0 else "behind"
    message = (
        f"The server's clock is {_span(abs(ahead_us))} {direction} that of this machine. Decisions follow the "
        "server's: days and months begin by it, and counts of other machines are shifted."
    )
    return Finding("clock", WARNING, message, _SYNCHRONIZE, f"on {where} and on this machine")


def _latency(status: ServerStatus, url: str, deadline: float) -> Finding:
    where, trips = _where(status), status.round_trips_us
    if not trips:
        return Finding("latency", WARNING, "Not known: the right to run TIME is missing.", where=where)
    median_us, slowest_us = trips[len(trips) // 2], trips[-1]
    numbers = f"{len(trips)} round trips took {_span(median_us)} in the middle, {_span(slowest_us)} at most"
    if median_us > MAX_DEADLINE_SHARE * deadline * SECOND:
        needed_ms = -(-4 * median_us // 1000)
        change = f"{_base(url)}?deadline={needed_ms}ms"
        message = f"{numbers}: too slow for the deadline of {deadline * 1000:g} ms, after which a decision fails."
        level: Level = ERROR if median_us > deadline * SECOND else WARNING
        return Finding("latency", level, message, change, "the engine's URL")
    if median_us > SLOW_ROUND_TRIP_US:
        message = f"{numbers}: every decision waits that long. Move the server closer, or keep refusals locally."
        return Finding("latency", WARNING, message, f"{_base(url)}?denial_cache=on", "the engine's URL")
    return Finding("latency", OK, numbers, where=where)


def _base(url: str) -> str:
    """Returns the URL without its login and options."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _span(microseconds: int) -> str:
    if microseconds < 1000:
        return f"{microseconds} µs"
    return f"{microseconds / SECOND:,.1f} s" if microseconds >= SECOND else f"{microseconds / 1000:.1f} ms"
