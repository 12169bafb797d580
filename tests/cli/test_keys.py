"""headgate keys: what is counted, by rule, and whose counts are fullest."""

from pathlib import Path

import pytest

from headgate import Limiter
from tests.cli.conftest import Prompt
from tests.servers import Cluster, RedisServer

BOOK = """
rules:
  - {name: login, key: user, missing: deny, limit: "10/hour; 100/day", overrides: true}
  - {name: items, key: [user, sku], missing: one, limit: {by: user, cases: {ann: 100/hour}, otherwise: 10/hour}}
"""


def fill(url: str, limit: str, costs: dict[str, int], name: str | None = None) -> None:
    with Limiter(limit, url, name=name) as limiter:
        for key, cost in costs.items():
            limiter.take(key, cost)


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.yaml"
    path.write_text(BOOK)
    return str(path)


def test_the_fullest_come_first_by_the_limit_that_is_their_name(prompt: Prompt, server: RedisServer) -> None:
    fill(server.url, "10/hour", {"ann": 9, "bob": 2})
    fill(server.url, "1000/hour", {"eve": 500})
    document = prompt.json("keys", "--engine", server.url)
    assert [(each["key"], each["used"], each["of"], each["remaining"]) for each in document["keys"]] == [
        ("ann", 9, 10, 1),
        ("eve", 500, 1000, 500),
        ("bob", 2, 10, 8),
    ]
    assert [(each["name"], each["counts"]) for each in document["rules"]] == [("10/hour", 2), ("1000/hour", 1)]
    assert (document["counts"], document["complete"]) == (3, True)


def test_people_get_two_tables(prompt: Prompt, server: RedisServer) -> None:
    fill(server.url, "10/hour", {"ann": 9, "bob": 2})
    assert prompt("keys", "--engine", server.url, "--top", "1") == 0
    rows = [line.split() for line in prompt.out.splitlines()]
    assert rows[0] == ["rule", "counts", "bytes"]
    assert rows[1][:2] == ["10/hour", "2"]
    assert rows[3] == ["rule", "key", "used", "of", "remaining", "reset", "limit"]
    assert rows[4][:5] == ["10/hour", "ann", "9", "10", "1"]
    assert len(rows) == 5


def test_without_a_limit_those_that_expire_last_come_last_of_all(prompt: Prompt, server: RedisServer) -> None:
    fill(server.url, "10/hour", {"short": 1}, name="api")
    fill(server.url, "10/day", {"long": 9}, name="api")
    fill(server.url, "10/hour", {"known": 1})
    document = prompt.json("keys", "--engine", server.url)
    assert [(each["key"], each["used"]) for each in document["keys"]] == [
        ("known", 1),
        ("long", None),
        ("short", None),
    ]


def test_a_rulebook_tells_the_limits_of_its_rules(prompt: Prompt, server: RedisServer, book: str) -> None:
    fill(server.url, "10/hour", {"user=ann": 5, "user=bob": 10}, name="login")
    fill(server.url, "100/day", {"user=ann": 5}, name="login#1")
    fill(server.url, "100/hour", {"user=ann|sku=7": 70}, name="items")
    fill(server.url, "10/hour", {"user=bob|sku=": 6}, name="items")
    document = prompt.json("keys", "--engine", server.url, "--rules", book)
    assert [(each["name"], each["key"], each["used"], each["of"]) for each in document["keys"]] == [
        ("login", "user=bob", 10, 10),
        ("items", "user=ann|sku=7", 70, 100),
        ("items", "user=bob|sku=", 6, 10),
        ("login", "user=ann", 5, 10),
        ("login#1", "user=ann", 5, 100),
    ]
    document = prompt.json("keys", "--engine", server.url, "--rules", book, "--rule", "login")
    assert {each["name"] for each in document["keys"]} == {"login", "login#1"}


TIERS = """
rules:
  - name: a
    overrides: true
    limit: {by: plan, cases: {pro: "100/hour; 500/day", "user@#1": 20/hour}, otherwise: 10/hour}
    candidate: {by: plan, cases: {pro: 50/hour}, otherwise: 5/hour}
"""


def test_the_case_is_read_from_the_counter_name(prompt: Prompt, server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "tiers.yaml"
    path.write_text(TIERS)
    with Limiter.from_rules(str(path), server.url) as program:
        for plan, cost in (("pro", 50), ("user@#1", 8), ("", 3)):
            program.check({"plan": plan}, cost)
    words = ("keys", "--engine", server.url, "--rules", str(path))
    assert {(each["name"], each["used"], each["of"]) for each in prompt.json(*words)["keys"]} == {
        ("a@pro", 50, 100),
        ("a#1@pro", 50, 500),
        ("a@user@#1", 8, 20),
        ("a", 3, 10),
        ("a~@pro", 50, 50),
        ("a~", 3, 5),
    }
    assert prompt("overrides", "set", "a", "all", "200/hour", "--engine", server.url, "--rules", str(path)) == 0
    rows = prompt.json(*words, "--rule", "a")["keys"]
    limits = {each["name"]: each["of"] for each in rows if "~" not in each["name"]}
    assert limits == {"a@pro": 200, "a#1@pro": 500, "a@user@#1": 200, "a": 200}, "one override, whatever the case"


def test_a_limit_is_not_guessed(prompt: Prompt, server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "tiers.yaml"
    path.write_text(TIERS)
    fill(server.url, "100/hour", {"all": 50}, name="a@gone")
    (key,) = prompt.json("keys", "--engine", server.url, "--rules", str(path))["keys"]
    assert (key["limit"], key["used"], key["remaining"]) == (None, None, None)
    assert 1700 < key["expires_after"] <= 1800.1


def test_the_case_of_a_hashed_key_is_unknown_where_the_key_decides_it(
    prompt: Prompt, server: RedisServer, book: str
) -> None:
    fill(server.url, "10/hour", {f"user={'x' * 300}|sku=7": 3}, name="items")
    (key,) = prompt.json("keys", "--engine", server.url, "--rules", book)["keys"]
    assert (key["limit"], key["used"]) == (None, None)


def test_a_key_with_an_override_is_shown_by_that(prompt: Prompt, server: RedisServer, book: str) -> None:
    assert prompt("overrides", "set", "login", "user=ann", "50/hour", "--engine", server.url, "--rules", book) == 0
    assert (
        prompt("take", "user=ann", "--rule", "login", "--rules", book, "--engine", server.url, "--cost", "20") == 0
    )
    (first, *_) = prompt.json("keys", "--engine", server.url, "--rules", book, "--top", "1")["keys"]
    assert (first["used"], first["of"], first["limit"]) == (20, 50, "50/hour")


def test_it_says_when_it_stopped_early(prompt: Prompt, server: RedisServer) -> None:
    fill(server.url, "10/hour", {f"k{number}": 1 for number in range(12)})
    assert prompt("keys", "--engine", server.url, "--scan-limit", "10") == 0
    assert "Stopped at 10" in prompt.err
    assert not prompt.json("keys", "--engine", server.url, "--scan-limit", "10")["complete"]


def test_nothing_is_counted(prompt: Prompt, server: RedisServer) -> None:
    assert prompt("keys", "--engine", server.url) == 0
    assert prompt.out == "Nothing is counted.\n"


def test_a_rule_that_is_nowhere_is_refused(prompt: Prompt, server: RedisServer, book: str) -> None:
    assert (
        prompt.json("keys", "--engine", server.url, "--rule", "lgoin")["counts"] == 0
    )  # no book says what there is
    assert prompt("rules", "push", book, "--engine", server.url) == 0
    for words in ((), ("--rules", book)):
        error = prompt.failure("keys", "--engine", server.url, "--rule", "lgoin", *words)
        assert error.startswith('There is no rule "lgoin" in ')
        assert error.endswith("Did you mean login? Nothing is counted under that name either.")
    for name in ("login", "login#1", "items@ann"):
        assert prompt.json("keys", "--engine", server.url, "--rule", name)["counts"] == 0
    fill(server.url, "10/hour", {"user=ann": 5}, name="gone")  # a rule that the book had once
    assert prompt.json("keys", "--engine", server.url, "--rule", "gone")["counts"] == 1


def test_in_a_cluster_all_masters_are_scanned(prompt: Prompt, cluster: Cluster) -> None:
    fill(cluster.url, "10/hour", {f"k{number}": 1 for number in range(50)})
    assert prompt.json("keys", "--engine", cluster.url)["counts"] == 50


def test_a_process_alone_has_nothing_to_show(prompt: Prompt) -> None:
    assert "nothing is counted there between two commands" in prompt.failure("keys", "--engine", "memory://")
    assert "gave no decision" in prompt.failure("keys", "--engine", "redis://127.0.0.1:1", code=1)


def test_paused_keys_are_listed_with_what_is_left(prompt: Prompt, server: RedisServer) -> None:
    with Limiter("10/hour", server.url, name="partner", pausable=True) as limiter:
        limiter.take("api.example", 3)
        limiter.pause("api.example", 1800)
        limiter.pause("idle.example", 60)
    with Limiter("2 slots", server.url, name="exports", pausable=True) as limiter:
        limiter.pause("pdf", 600)
    document = prompt.json("keys", "--engine", server.url)
    assert [(each["name"], each["key"]) for each in document["pauses"]] == [
        ("partner", "api.example"),
        ("exports", "pdf"),
        ("partner", "idle.example"),
    ]
    assert 1700 < document["pauses"][0]["paused_for"] <= 1800
    assert (document["counts"], [each["key"] for each in document["keys"]]) == (1, ["api.example"])
    only = prompt.json("keys", "--engine", server.url, "--rule", "exports")
    assert [each["key"] for each in only["pauses"]] == ["pdf"]
    assert prompt("keys", "--engine", server.url) == 0
    assert [line.split()[:2] for line in prompt.out.splitlines()[-4:]] == [
        ["paused", "key"],
        ["partner", "api.example"],
        ["exports", "pdf"],
        ["partner", "idle.example"],
    ]


def test_a_value_that_is_no_pause_is_not_listed(prompt: Prompt, server: RedisServer) -> None:
    server.call("SET", "hg2:pe:partner:{api}", "something else")
    server.call("HSET", "hg2:pe:partner:{other}", "a", "1")
    assert prompt.json("keys", "--engine", server.url)["pauses"] == []
