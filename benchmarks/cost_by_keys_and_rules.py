"""Measures the cost of a decision with more keys, and with more rules in one call.

1 to 1,000,000 keys under one rule, all of them known to Redis before; then 1, 2 and 4 rules on one key
(Limiter("...; ...")), and as many rules on as many keys (take_all). One thread, and 64 tasks on uvloop; client and
server on one core, every call allowed. A decision is a call, however many rules it has.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import headgate
from benchmarks import headgate_subjects
from benchmarks.interleaved_runs import (
    SPEED,
    AsyncTake,
    Samples,
    Stretch,
    Subject,
    TaskCallers,
    ThreadCaller,
    last_core,
    median,
    over_keys,
    ratio,
    run_interleaved,
)
from benchmarks.redis_process import pinned_server
from benchmarks.report import BenchmarkReport, figure
from headgate.engines.redis.protocol import RequestBuilder
from tests.servers import RedisServer

KEYS = (1, 10, 1_000, 1_000_000)
RULES = ("10000000/365d", "9000000/360d", "8000000/320d", "7000000/280d")
LIMITS = tuple(headgate.parse(rule) for rule in RULES)
TASKS = 64
FILL = """
local text, ttl = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
for i = ARGV[1], ARGV[2] do redis.call('SET', ARGV[3] .. string.format('%.0f', i) .. '}', text, 'PX', ttl) end
"""


def answer(report: BenchmarkReport) -> None:
    core = last_core()
    with pinned_server(core) as server:
        _fill(server)
        for case, make in (("one thread", one_thread), (f"{TASKS} tasks", many_tasks)):
            samples = run_interleaved(report, case, _subjects(server, make), rounds=20, seconds=0.2, core=core)
            _print_table(report, case, samples)


def _fill(server: RedisServer) -> None:
    """Every key is there, a thousand units away from being forgotten."""
    limiter = headgate.Limiter(RULES[0], server.url)
    limiter.take("user:0", 1000)
    questions = RequestBuilder(headgate.parse(RULES[0]), RULES[0], "hg")
    step = 50_000
    for first in range(0, max(KEYS), step):
        last = first + step - 1
        server.call("EVAL", FILL, 1, questions.key("user:0"), first, last, questions.key("user:")[:-1])
    assert limiter.peek("user:999999").remaining < 10_000_000


def _subjects(server: RedisServer, make: Callable[..., Stretch]) -> list[Subject]:
    url, pid = server.url, server.pid
    made = {f"{count:,} keys" if count > 1 else "1 key": (count, 1, False) for count in KEYS}
    made |= {f"{rules} rules on one key": (1_000, rules, False) for rules in (2, 4)}
    made |= {f"{rules} rules on {rules} keys": (1_000, rules, True) for rules in (2, 4)}
    return [Subject(name, make, (pid, url, *how)) for name, how in made.items()]


def _print_table(report: BenchmarkReport, case: str, samples: Samples) -> None:
    few = "1,000 keys"
    rows = []
    for name in samples:
        costs = [median(samples, name, what) for what in (SPEED, "p50_us", "client_cpu_us", "server_cpu_us")]
        rows.append([name, *map(figure, costs), figure(ratio(samples, name, few, "server_cpu_us"))])
    report.say(case)
    columns = ["decisions/s", "p50 us", "client CPU us", "server CPU us", "server CPU, of 1,000 keys"]
    report.table(["", *columns], rows)
    value = ratio(samples, "1,000,000 keys", few, "server_cpu_us")
    report.target(f"{case}: server CPU with 1,000,000 keys, of 1,000", value, at_most=2)
    for kind in ("one key", "4 keys"):
        value = ratio(samples, f"4 rules on {kind}", few, "server_cpu_us")
        # With many tasks a single take shares the cost of a script call with 63 others.
        many = case != "one thread"
        report.target(f"{case}: server CPU of 4 rules on {kind}, of one rule", value, at_most=3.5 if many else 4)
        if many:
            value = ratio(samples, f"4 rules on {kind}", few, "client_cpu_us")
            report.target(f"{case}: client CPU of 4 rules on {kind}, of one rule", value, at_most=3)


def _keys(count: int) -> Sequence[str]:
    return [f"user:{number}" for number in random.Random(1).sample(range(count), min(count, 200_000))]


def one_thread(server_pid: int, url: str, count: int, rules: int, apart: bool) -> Stretch:
    subject = (
        ThreadCaller(together, url, rules)
        if apart
        else ThreadCaller(headgate_subjects.take, "; ".join(RULES[:rules]), url)
    )
    return over_keys(subject, _keys(count), server_pid)


def many_tasks(server_pid: int, url: str, count: int, rules: int, apart: bool) -> Stretch:
    make: Callable[..., Awaitable[AsyncTake]] = async_together if apart else async_take
    return over_keys(TaskCallers(TASKS, make, url, rules), _keys(count), server_pid)


def together(url: str, rules: int) -> Callable[[str], Any]:
    take_all = headgate.Limiter(RULES[0], url).take_all
    return lambda key: take_all(_charges(key, rules))


async def async_together(url: str, rules: int) -> AsyncTake:
    take_all = headgate.AsyncLimiter(RULES[0], url).take_all
    return lambda key: take_all(_charges(key, rules))


async def async_take(url: str, rules: int) -> AsyncTake:
    return headgate.AsyncLimiter("; ".join(RULES[:rules]), url).take


def _charges(key: str, rules: int) -> list[tuple[str, headgate.Limit]]:
    return [(f"{key}:{number}", LIMITS[number]) for number in range(rules)]
