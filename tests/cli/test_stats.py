"""headgate stats and headgate rules report: what was counted by all processes, for a person and for a program."""

import pytest

from headgate import Counts, EngineUnavailable, Limiter
from tests.cli.conftest import Prompt
from tests.servers import RedisServer

RULE = {"name": "login", "key": "user", "missing": "deny", "limit": "3/minute", "candidate": "1/minute"}


@pytest.fixture
def counted(redis_server: RedisServer) -> str:
    """A server with counts: user=annabel calls 5 times, 9 others once. A busy machine may answer late."""
    url = f"{redis_server.url}?deadline=30s"
    with Limiter.from_rules({"rules": [RULE]}, observers=[Counts(shared_at=url)]) as limiter:
        for user in (*["annabel"] * 5, *map(str, range(9))):
            limiter.check({"user": user})
    return url


def test_stats_by_rule(prompt: Prompt, counted: str) -> None:
    document = prompt.json("stats", "--engine", counted, "--minutes", "10")
    assert document["seconds"] == 600
    [login] = document["rules"]
    assert (login["rule"], login["calls"], login["refused"], login["candidate_refused"]) == ("login", 14, 2, 4)
    assert prompt("stats", "--engine", counted, "--rule", "login", "--seconds", "120") == 0
    assert prompt.out.split() == [
        *("rule", "calls", "refused", "near", "limit", "candidate", "refused"),
        *("login", "14", "2", "1", "4"),
    ]


def test_calls_that_could_not_be_decided(prompt: Prompt, redis_server: RedisServer) -> None:
    url = f"{redis_server.url}?deadline=30s"
    with RedisServer() as gone:
        limiter = Limiter("3/minute", f"{gone.url}?deadline=30s", observers=[Counts(shared_at=url)])
    with limiter:
        for _ in range(2):
            with pytest.raises(EngineUnavailable):
                limiter.take("ann")
    assert prompt("stats", "--engine", url) == 0
    assert [line.split() for line in prompt.out.splitlines()] == [
        ["rule", "calls", "refused", "errors"],
        ["(no", "rule)", "0", "0", "2"],
    ]


def test_the_hottest_keys(prompt: Prompt, counted: str) -> None:
    document = prompt.json("stats", "--engine", counted, "--rule", "login", "--keys", "calls", "--mask")
    assert document["keys"]["rows"][0] == {"key": "user=an***", "calls": 5}
    assert prompt("stats", "--engine", counted, "--rule", "login", "--keys", "refused") == 0
    assert prompt.out.splitlines()[-1].split() == ["user=annabel", "2"]


def test_hot_keys_need_a_rule(prompt: Prompt, counted: str) -> None:
    assert "--rule" in prompt.failure("stats", "--engine", counted, "--keys", "calls")


def test_nothing_counted(prompt: Prompt, redis_server: RedisServer) -> None:
    assert prompt("stats", "--engine", redis_server.url) == 0
    assert prompt.out == "Nothing was counted in this time.\n"
    assert prompt("rules", "report", "login", "--engine", redis_server.url) == 0
    assert prompt.out.startswith('Rule "login" was not called since ')


def test_a_span_is_bounded(prompt: Prompt, redis_server: RedisServer) -> None:
    assert "at most 1500" in prompt.failure("stats", "--minutes", "1501", "--engine", redis_server.url)
    assert "at most 25" in prompt.failure(
        "rules", "report", "login", "--hours", "26", "--engine", redis_server.url
    )


def test_memory_has_no_counts_for_another_command(prompt: Prompt) -> None:
    assert "memory://" in prompt.failure("stats", "--engine", "memory://")
    assert "memory://" in prompt.failure("rules", "report", "login", "--engine", "memory://")


def test_a_report_on_a_candidate(prompt: Prompt, counted: str) -> None:
    document = prompt.json("rules", "report", "login", "--engine", counted, code=3)
    live, candidate = document["rows"]
    assert (live["kind"], live["calls"], live["refused"], live["keys_refused"]) == ("live", 14, 2, 1)
    assert (candidate["kind"], candidate["refused"], candidate["keys_refused"]) == ("candidate", 4, 1)
    assert (candidate["keys"], candidate["safe"]) == (10, "not enough data")
    assert document["suffering"] == [{"key": "user=annabel", "calls": 4}]


def test_a_report_for_people(prompt: Prompt, redis_server: RedisServer) -> None:
    with Limiter.from_rules({"rules": [RULE]}, observers=[Counts(shared_at=redis_server.url)]) as limiter:
        for user in range(1000):
            limiter.check({"user": str(user)})
        for _ in range(5):
            limiter.check({"user": "annabel"})
    assert prompt("rules", "report", "login", "--engine", redis_server.url, "--max-refused", "1%", "--mask") == 0
    assert "safe to enforce?" in prompt.out
    assert "Candidate: yes, because it refuses" in prompt.out
    assert "user=an***" in prompt.out
    assert prompt("rules", "report", "login", "--engine", redis_server.url, "--max-refused", "0.05%") == 3
    assert "Candidate: no, because" in prompt.out


@pytest.mark.parametrize("share", ["101%", "2", "much", "-1%"])
def test_a_share_is_a_percentage(prompt: Prompt, redis_server: RedisServer, share: str) -> None:
    words = "rules", "report", "login", "--engine", redis_server.url, f"--max-refused={share}"
    assert "0.1%" in prompt.failure(*words)
