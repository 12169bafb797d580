"""headgate take, peek, refund and reset on real servers."""

import json
from pathlib import Path

import pytest

from headgate import Limiter
from tests.cli.conftest import Prompt
from tests.servers import Cluster, RedisServer

LIMITS = ("10/minute", "10/minute queue 9 nodelay", "10/minute fixed", "10/minute sliding", "10/minute log")


def test_a_take_is_the_take_of_a_program(prompt: Prompt, server: RedisServer) -> None:
    document = prompt.json("take", "ann", "--limit", "3/hour", "--engine", server.url)
    assert (document["allowed"], document["remaining"], document["key"]) == (True, 2, "ann")
    with Limiter("3/hour", server.url) as program:
        assert program.take("ann").remaining == 1
    document = prompt.json("take", "ann", "--limit", "3/hour", "--engine", server.url, "--cost", "2", code=3)
    assert not document["allowed"]
    assert 1000 < document["retry_after"] <= 1200
    assert document["delay"] == 0


def test_a_name_and_a_prefix_are_where_the_program_files_its_counts(prompt: Prompt, server: RedisServer) -> None:
    with Limiter("3/hour", server.url, name="api", prefix="shop") as program:
        program.take("ann")
    words = ("ann", "--limit", "3/hour", "--engine", server.url)
    assert prompt.json("peek", *words)["remaining"] == 3
    assert prompt.json("peek", *words, "--name", "api", "--prefix", "shop")["remaining"] == 2


def test_people_get_a_sentence_and_a_table(prompt: Prompt, server: RedisServer) -> None:
    words = ("ann", "--limit", "2/hour; 5/day", "--engine", server.url)
    assert prompt("take", *words, "--cost", "2") == 0
    sentence, titles, *rows = prompt.out.splitlines()
    assert sentence == "allowed by 2/hour, 0 remaining"
    assert titles.split() == ["count", "limit", "remaining", "retry", "after", "reset", "after", "delay"]
    assert [row.split()[:4] for row in rows] == [
        ["2/hour", "2/hour", "allowed", "0"],
        ["5/day", "5/day", "allowed", "3"],
    ]
    assert prompt("take", *words) == 3
    assert prompt.out.startswith("refused by 2/hour: retry after ")
    assert "\x1b" not in prompt.out


def test_several_limits_are_charged_together_or_not_at_all(prompt: Prompt, server: RedisServer) -> None:
    words = ("ann", "--limit", "2/hour; 5/day", "--engine", server.url)
    prompt.json("take", *words, "--cost", "2")
    refused = prompt.json("take", *words, code=3)
    assert [(limit["allowed"], limit["remaining"]) for limit in refused["limits"]] == [(False, 0), (True, 3)]


def test_a_peek_charges_nothing_whatever_it_would_cost(prompt: Prompt, server: RedisServer) -> None:
    words = ("ann", "--limit", "3/hour", "--engine", server.url)
    assert prompt.json("peek", *words, "--cost", "3")["allowed"]
    assert not prompt.json("peek", *words, "--cost", "4", code=3)["allowed"]
    prompt.json("take", *words)
    refused = prompt.json("peek", *words, "--cost", "3", code=3)
    assert refused["remaining"] == 2
    assert 1100 < refused["retry_after"] <= 1200


@pytest.mark.parametrize("limit", LIMITS)
def test_a_refund_gives_room_and_a_reset_all_of_it(prompt: Prompt, server: RedisServer, limit: str) -> None:
    words = ("ann", "--limit", limit, "--engine", server.url)
    prompt.json("take", *words, "--cost", "6")
    document = prompt.json("refund", *words, "--cost", "4")
    assert [(each["before"], each["remaining"]) for each in document["limits"]] == [(4, 8)]
    document = prompt.json("refund", *words, "--cost", "100")
    assert document["limits"][0]["remaining"] == 10, "and no more than was used"
    prompt.json("take", *words, "--cost", "10")
    assert prompt.json("reset", *words)["reset"] == [limit]
    assert prompt.json("peek", *words)["remaining"] == 10


def test_a_refund_is_shown_before_and_after(prompt: Prompt, server: RedisServer) -> None:
    words = ("ann", "--limit", "10/hour", "--engine", server.url)
    prompt("take", *words, "--cost", "6")
    assert prompt("refund", *words, "--cost", "4") == 0
    assert [line.split() for line in prompt.out.splitlines()] == [
        ["count", "limit", "before", "after"],
        ["10/hour", "10/hour", "4", "8"],
    ]


def test_slots_can_be_looked_at_and_reset_but_not_taken(prompt: Prompt, server: RedisServer) -> None:
    words = ("job", "--limit", "3 slots", "--engine", server.url)
    with Limiter("3 slots", server.url) as program:
        program.acquire("job")
        assert prompt.json("peek", *words)["remaining"] == 2
        assert "held, not taken" in prompt.failure("take", *words)
        assert "held, not taken" in prompt.failure("refund", *words)
        prompt.json("reset", *words)
        assert prompt.json("peek", *words)["remaining"] == 3


def test_in_a_cluster_it_is_no_different(prompt: Prompt, cluster: Cluster) -> None:
    words = ("ann", "--limit", "3/hour", "--engine", cluster.url)
    assert prompt.json("take", *words)["remaining"] == 2
    assert prompt.json("refund", *words)["limits"][0]["remaining"] == 3


def test_take_bypasses_the_layers_in_the_engine_url(prompt: Prompt, server: RedisServer) -> None:
    url = f"{server.url}?fallback=allow&denial_cache=on&prefetch=1s"
    assert prompt.json("take", "ann", "--limit", "3/hour", "--engine", url)["remaining"] == 2
    assert "127.0.0.1:1 gave no decision" in prompt.failure(
        "take", "ann", "--limit", "3/hour", "--engine", "redis://127.0.0.1:1/0?fallback=allow&deadline=1s", code=1
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--limit", "3/hour"],
            "No server is given. Write headgate take --engine redis://host:6379/0, or set HEADGATE_ENGINE.",
        ),
        (["--limit", "3/hour", "--engine", "memory://"], "nothing is remembered between two commands"),
        (["--engine", "redis://127.0.0.1:1"], "Neither --limit nor --rule is given."),
        (
            ["--limit", "1/s", "--rule", "x", "--engine", "redis://127.0.0.1:1"],
            "--limit and --rule are both given: a count belongs to one of them",
        ),
        (
            ["--limit", "1/s", "--rules", "nope.yaml", "--engine", "redis://127.0.0.1:1"],
            "--rules has no effect with --limit. Use it with --rule.",
        ),
        (
            ["--limit", "1/s", "--attribute", "plan=x", "--engine", "redis://127.0.0.1:1"],
            "--attribute has no effect with --limit. Use it with --rule.",
        ),
        (["--limit", "3/huor", "--engine", "redis://127.0.0.1:1"], "Did you mean 3/hour?"),
        (["--limit", "3/hour", "--cost", "0"], "a whole number of at least 1, not '0'"),
    ],
)
def test_invalid_options_are_reported(prompt: Prompt, words: list[str], message: str) -> None:
    assert message in prompt.failure("take", "ann", *words)


def test_an_empty_key_is_refused(prompt: Prompt, server: RedisServer) -> None:
    assert "must not be empty" in prompt.failure("take", "", "--limit", "3/hour", "--engine", server.url)


def test_errors_are_json_where_answers_are(prompt: Prompt) -> None:
    assert prompt("take", "ann", "--limit", "3/huor", "--engine", "redis://127.0.0.1:1", "--json") == 2
    assert "Did you mean 3/hour?" in json.loads(prompt.err)["error"]
    assert prompt.out == ""
    assert prompt("tkae", "--json") == 2
    assert "Did you mean take?" in json.loads(prompt.err)["error"]


BOOK = """
rules:
  - name: items
    key: [user, sku]
    missing: one
    limit: {by: plan, cases: {pro: "100/hour; 500/day", log: 50/hour log, staff: unlimited}, otherwise: 5/hour}
  - {name: login, key: address, limit: 3/hour, lockout: {after: 2, within: 1h, for: 2h}}
  - {name: here, where: node, limit: 3/hour}
  - {name: near, key: address/24, limit: {by: address, cases: {192.0.2.7: 9/hour}, otherwise: 5/hour}}
  - {name: own, key: user, missing: skip, limit: {by: user, cases: {"a|b": 7/hour}, otherwise: 5/hour}}
"""


@pytest.fixture
def ruled(server: RedisServer, tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "book.yaml"
    path.write_text(BOOK)
    return ("--engine", server.url, "--rules", str(path))


def test_a_rule_is_charged_as_programs_charge_it(
    prompt: Prompt, server: RedisServer, ruled: tuple[str, ...]
) -> None:
    document = prompt.json("take", "user=ann|sku=7", "--rule", "items", "--attribute", "plan=pro", *ruled)
    assert [(each["name"], each["remaining"]) for each in document["limits"]] == [
        ("items@pro", 99),
        ("items#1@pro", 499),
    ]
    program = Limiter.from_rules(ruled[-1], server.url)
    decision = program.check({"user": "ann", "sku": "7", "plan": "pro", "address": "192.0.2.7"})
    program.close()
    assert {verdict.remaining for verdict in decision.verdicts if verdict.rule == "items"} == {98, 498}
    assert prompt.json("peek", "address=192.0.2.7", "--rule", "login", *ruled)["remaining"] == 2


def test_a_lockout_is_a_lockout_and_a_reset_ends_it(prompt: Prompt, ruled: tuple[str, ...]) -> None:
    words = ("address=192.0.2.7", "--rule", "login", *ruled)
    prompt.json("take", *words, "--cost", "3")
    assert 1000 < prompt.json("take", *words, code=3)["retry_after"] <= 1200
    prompt.json("take", *words, code=3)
    assert 7000 < prompt.json("peek", *words, code=3)["retry_after"] <= 7200
    prompt.json("reset", *words)
    assert prompt.json("peek", *words)["remaining"] == 3


def test_a_pause_of_a_rule_refuses_programs_until_a_reset(
    prompt: Prompt, server: RedisServer, tmp_path: Path
) -> None:
    path = tmp_path / "book.yaml"
    path.write_text(
        "rules: [{name: api, key: user, missing: skip, limit: 9/hour, pausable: 2h}, {name: all, limit: 9/s}]"
    )
    words = ("--rule", "api", "--rules", str(path), "--engine", server.url)
    assert prompt.json("pause", "user=ann", "1h", *words) == {"name": "api", "key": "user=ann", "paused_for": 3600}
    with Limiter.from_rules(str(path), server.url) as program:
        assert 3500 < program.check({"user": "ann"}).paused_for <= 3600
        assert program.check({"user": "bob"})
        assert prompt.json("peek", "user=ann", *words, code=3)["retry_after"] > 3500
        assert [each["key"] for each in prompt.json("keys", *words)["pauses"]] == ["user=ann"]
        assert prompt("pause", "user=ann", "3h", *words) == 0
        assert prompt.out.splitlines() == [
            "api: user=ann is paused for 7200 s",
            "A pause of api lasts 7200 s at most.",
        ]
        assert prompt("pause", "user=ann", "5s", *words) == 0
        assert "A longer pause was under way: it stays." in prompt.out
        prompt.json("reset", "user=ann", *words)
        assert program.check({"user": "ann"})
    assert "cannot be paused: say `pausable: true`" in prompt.failure(
        "pause", "all", "5s", "--rule", "all", "--rules", str(path), "--engine", server.url
    )


@pytest.mark.parametrize("limit", ["3/hour", "9/s; 5/hour fixed"])
def test_a_limiter_that_can_be_paused_is_paused_and_reset(prompt: Prompt, server: RedisServer, limit: str) -> None:
    with Limiter(limit, server.url, name="partner", pausable=True) as program:
        words = ("ann", "--limit", limit, "--name", "partner", "--engine", server.url)
        assert prompt.json("pause", words[0], "90m", *words[1:])["paused_for"] == 3600
        assert program.peek("ann").paused_for > 3500
        prompt.json("reset", *words)
        assert program.take("ann")


def test_a_reset_of_a_rule_forgets_the_counts_of_every_limit_it_may_choose(
    prompt: Prompt, ruled: tuple[str, ...]
) -> None:
    words = ("user=ann|sku=7", "--rule", "items", *ruled)
    for plan in ("pro", "log", ""):
        prompt.json("take", *words, "--attribute", f"plan={plan}")
    assert '"--attribute" is not an option' in prompt.failure("reset", *words, "--attribute", "plan=pro")
    assert prompt.json("reset", *words)["reset"] == ["items@pro", "items#1@pro", "items@log", "items"]
    remaining = [
        prompt.json("peek", *words, "--attribute", f"plan={plan}")["remaining"] for plan in ("pro", "log", "")
    ]
    assert remaining == [100, 50, 5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["user=ann|sku=7", "--rule", "items"],
            "has several limits, by plan: say which with --attribute plan=VALUE",
        ),
        (["user=ann", "--rule", "items"], 'is no key of rule "items". Write user=VALUE|sku=VALUE.'),
        (["user=a|sku=7", "--rule", "items", "--attribute", "plan=staff"], "is unlimited for this key"),
        (["address=192.0.2.0/24", "--rule", "near"], "by address: say which with --attribute address=VALUE"),
        (["all", "--rule", "here"], "is counted in each process (where: node)"),
        (["all", "--rule", "logn"], "Did you mean login?"),
        (["all", "--rule", "login", "--name", "x"], "--name has no effect with --rule"),
        (
            ["user=a|sku=7", "--rule", "items", "--attribute", "plan=pro", "--attribute", "pln=x"],
            'Rule "items" chooses its limit by plan, not by "pln". Did you mean plan?',
        ),
        (
            ["user=a|sku=7", "--rule", "items", "--attribute", "plan=pro", "--attribute", "tenant=x"],
            'Rule "items" chooses its limit by plan, not by "tenant". Leave --attribute tenant=x out.',
        ),
        (
            ["address=192.0.2.7", "--rule", "login", "--attribute", "plan=x"],
            'Rule "login" has the same limit for all. Leave --attribute plan=x out.',
        ),
    ],
)
def test_of_a_rule_nothing_is_guessed(
    prompt: Prompt, ruled: tuple[str, ...], words: list[str], message: str
) -> None:
    assert message in prompt.failure("take", *words, *ruled)


def test_values_of_a_key_may_hold_anything(prompt: Prompt, server: RedisServer, ruled: tuple[str, ...]) -> None:
    program = Limiter.from_rules(ruled[-1], server.url)
    program.check({"user": "a|b=100%", "sku": "", "plan": "pro", "address": "192.0.2.7"})
    program.close()
    words = ("user=a%7Cb=100%25|sku=", "--rule", "items", "--attribute", "plan=pro", *ruled)
    assert prompt.json("peek", *words)["remaining"] == 99
    assert prompt.json("peek", "user=a%7Cb", "--rule", "own", *ruled)["remaining"] == 7
