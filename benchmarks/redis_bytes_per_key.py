"""Measures the bytes of Redis that a key takes.

Measured as what the server's used_memory grows by, over 50,000 keys of one shape. The measure for a token bucket
is a bare integer with a TTL under the very same keys. A counter below 10,000 is a case of its own: Redis has those
numbers made already, and such a value takes no room at all.
"""

import headgate
from benchmarks.interleaved_runs import last_core
from benchmarks.redis_process import pinned_server, used_memory
from benchmarks.report import BenchmarkReport, figure
from headgate.engines.redis import keys
from tests.servers import RedisServer

KEYS, LOG = 50_000, 70_000

BUCKETS = {"100/day": "whole microseconds", "7/day": "a remainder", "700001/365d": "a remainder of six digits"}
LIMITS = (*BUCKETS, "1/minute queue 100 nodelay", "100/day fixed", "100/day sliding", "100/day log", "1/h smooth")

_FILL = """
for number = 0, ARGV[1] - 1 do
  redis.call("SET", (string.gsub(ARGV[2], "@", string.format("%08d", number))), ARGV[3], "EX", 86400)
end
"""


def answer(report: BenchmarkReport) -> None:
    with pinned_server(last_core()) as server:
        _buckets(report, server)
        _report_log_bytes(report, server)


def _buckets(report: BenchmarkReport, server: RedisServer) -> None:
    rows = []
    for text in LIMITS:
        limit = headgate.parse(text)
        shape = keys.build_key(keys.key_head("hg", limit.algorithm, limit.text), "user:@")
        integer, counter = (_bytes_of_set(server, shape, value) for value in (1_800_000_000_123_456, 7))
        ours = _bytes_after_take(server, text)
        report.keep(limit=text, integer=integer, counter=counter, ours=ours)
        rows.append([text, figure(ours), figure(ours - integer), figure(ours - counter)])
        if text in BUCKETS:
            what = f'token bucket "{text}" ({BUCKETS[text]}), bytes above a bare integer with TTL'
            report.target(what, ours - integer, at_most=35)
    report.table(["one take each", "bytes per key", "above an integer", "above a counter of 7"], rows)


def _bytes_after_take(server: RedisServer, text: str) -> float:
    """Bytes per key after one take each, as a program would."""
    with headgate.Limiter(text, server.unix_url) as limiter:
        limiter.take("somebody")
        server.call("FLUSHALL", "SYNC")
        before = used_memory(server)
        for number in range(KEYS):
            limiter.take(f"user:{number:08d}")
        return (used_memory(server) - before) / KEYS


def _bytes_of_set(server: RedisServer, shape: bytes, value: int) -> float:
    """Bytes per key of a plain value with a TTL."""
    server.call("FLUSHALL", "SYNC")
    before = used_memory(server)
    server.call("EVAL", _FILL, 0, KEYS, shape, value)
    return (used_memory(server) - before) / KEYS


def _report_log_bytes(report: BenchmarkReport, server: RedisServer) -> None:
    """One log of 70,000 a day: the string's own size by MEMORY USAGE, for each unit that it holds."""
    rows, worst, size = [], 0.0, 0
    limit = headgate.parse(f"{LOG}/day log")
    key = keys.build_key(keys.key_head("hg", limit.algorithm, limit.text), "user")
    limiter = headgate.Limiter(limit, server.unix_url)
    for held in range(1, LOG + 1):
        limiter.take("user")
        if held < 1000 and held not in (10, 100):
            continue
        reply = server.call("MEMORY", "USAGE", key)
        assert isinstance(reply, int)
        size = reply
        worst = max(worst, size / held) if 1000 <= held < LOG else worst
        if held in (10, 100, 1000, 10_000, 35_001, 69_999, LOG):
            rows.append([f"{held:,} units", f"{size:,}", figure(size / held)])
        report.keep(held=held, size=size)
    report.table([f"sliding log, {LOG:,} a day", "bytes", "bytes per unit"], rows)
    report.target("sliding log, bytes per unit when full", size / LOG, at_most=10)
    report.target("sliding log, most bytes per unit while it fills (from 1,000 units on)", worst, at_most=20)
