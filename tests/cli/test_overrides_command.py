"""headgate overrides: limits of a key's own, and what would decide nothing is refused."""

from pathlib import Path

import pytest

from tests.cli.conftest import Prompt
from tests.servers import RedisServer

BOOK = """
rules:
  - {name: login, key: user, missing: deny, limit: "10/hour; 100/day", overrides: true}
  - {name: month, limit: 5/month fixed in Asia/Shanghai, overrides: true}
  - {name: plain, limit: 10/hour}
"""


@pytest.fixture
def where(server: RedisServer, tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "book.yaml"
    path.write_text(BOOK)
    return ("--engine", server.url, "--rules", str(path))


def test_set_get_list_unset(prompt: Prompt, where: tuple[str, ...]) -> None:
    assert prompt("overrides", "set", "login", "user=ann", "50/hour", *where) == 0
    assert (prompt.out, prompt.err) == ("login: user=ann has 50/hour\n", "")
    assert prompt.json("overrides", "set", "login", "user=bob", "60/hour; 600/day", *where)["set"]
    assert prompt.json("overrides", "get", "login", "user=ann", *where)["limit"] == "50/hour"
    assert prompt("overrides", "list", "login", *where) == 0
    assert [line.split(None, 1) for line in prompt.out.splitlines()] == [
        ["key", "limit"],
        ["user=ann", "50/hour"],
        ["user=bob", "60/hour; 600/day"],
    ]
    assert prompt.json("overrides", "unset", "login", "user=ann", *where)["unset"]
    assert prompt.json("overrides", "unset", "login", "user=ann", *where, code=3) == {
        "rule": "login",
        "key": "user=ann",
        "unset": False,
    }
    assert prompt.json("overrides", "get", "login", "user=ann", *where, code=3)["limit"] is None
    assert len(prompt.json("overrides", "list", "login", *where)["overrides"]) == 1


def test_it_decides_from_the_next_call_on(prompt: Prompt, where: tuple[str, ...]) -> None:
    call = ("user=ann", "--rule", "login", *where)
    assert prompt.json("peek", *call, "--cost", "20", code=3)["remaining"] == 10
    prompt("overrides", "set", "login", "user=ann", "50/hour", *where)
    document = prompt.json("take", *call, "--cost", "20")
    assert [(each["limit"], each["remaining"]) for each in document["limits"]] == [
        ("50/hour", 30),
        ("100/day", 80),
    ]
    document = prompt.json("refund", *call, "--cost", "5")
    assert [each["remaining"] for each in document["limits"]] == [35, 85]


def test_only_if_there_is_none(prompt: Prompt, where: tuple[str, ...]) -> None:
    words = ("overrides", "set", "login", "user=ann")
    assert prompt.json(*words, "50/hour", "--if-absent", *where)["set"]
    assert not prompt.json(*words, "60/hour", "--if-absent", *where, code=3)["set"]
    assert prompt.json("overrides", "get", "login", "user=ann", *where)["limit"] == "50/hour"


def test_for_a_while(prompt: Prompt, server: RedisServer, where: tuple[str, ...]) -> None:
    document = prompt.json("overrides", "set", "login", "user=ann", "50/hour", "--for", "2h", *where)
    assert document["for"] == 7200
    keys = server.call("KEYS", "*")
    assert isinstance(keys, list)
    lives = [server.call("PTTL", key) for key in keys if isinstance(key, bytes)]
    assert any(isinstance(life, int) and 7_100_000 < life <= 7_200_000 for life in lives)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lgoin", "user=ann", "50/hour"], 'There is no rule "lgoin" in .*Did you mean login?'),
        (["plain", "all", "50/hour"], 'Rule "plain" takes no overrides: say `overrides: true` in it first.'),
        (["login", "ann", "50/hour"], '"ann" is no key of rule "login". Write user=VALUE.'),
        (["login", "user=ann", "50/hour log"], "a sliding log is no token bucket"),
        (["login", "user=ann", "1/s; 2/s; 3/s"], 'Rule "login" has 2 limits; the override has 3.'),
        (["month", "all", "5/hour fixed in Asia/Shanghai"], "is not a limit"),
        (["login", "user=ann", "3 slots"], "held, not taken"),
        (["login", "user=ann", "50/huor"], "Did you mean 50/hour?"),
        (
            ["login", "user=ann", "50/hour", "--for", "soon"],
            "a length of time, such as 30s, 10m or 2h; not 'soon'",
        ),
    ],
)
def test_an_override_without_effect_is_refused(
    prompt: Prompt, where: tuple[str, ...], words: list[str], message: str
) -> None:
    sentence = prompt.failure("overrides", "set", *words, *where)
    start, _, end = message.partition(".*")
    assert start in sentence
    assert end in sentence


def test_without_a_rulebook_it_is_set_with_a_warning(prompt: Prompt, server: RedisServer) -> None:
    assert prompt("overrides", "set", "login", "user=ann", "50/hour", "--engine", server.url) == 0
    assert prompt.err.startswith("headgate: There is no rulebook (--rules FILE)")
    assert prompt("overrides", "list", "other", "--engine", server.url) == 0
    assert prompt.out == "other: no key has a limit of its own\n"


@pytest.mark.parametrize("pushed", [True, False])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["list", "lgoin"], 'There is no rule "lgoin" in .*Did you mean login?'),
        (["list", "nope"], 'There is no rule "nope" in .*Known: login, month, plain.'),
        (["get", "lgoin", "user=ann"], 'There is no rule "lgoin" in .*Did you mean login?'),
        (["unset", "lgoin", "user=ann"], 'There is no rule "lgoin" in .*Did you mean login?'),
        (["get", "login", "usr=ann"], '"usr=ann" is no key of rule "login". .*Write user=VALUE.'),
        (["unset", "login", "usr=ann"], '"usr=ann" is no key of rule "login". .*Write user=VALUE.'),
    ],
)
def test_an_unknown_rule_or_key_is_refused_where_there_is_a_rulebook(
    prompt: Prompt, server: RedisServer, where: tuple[str, ...], words: list[str], sentence: str, pushed: bool
) -> None:
    if pushed:
        assert prompt("rules", "push", where[-1], "--engine", server.url) == 0
        where = ("--engine", server.url)
    error = prompt.failure("overrides", *words, *where)
    start, _, end = sentence.partition(".*")
    assert start in error
    assert error.endswith(end)


def test_overrides_of_a_rule_that_was_removed_can_be_read_and_unset(
    prompt: Prompt, server: RedisServer, where: tuple[str, ...]
) -> None:
    assert prompt("overrides", "set", "gone", "user=ann", "50/hour", "--engine", server.url) == 0
    assert prompt.json("overrides", "get", "gone", "user=ann", *where)["limit"] == "50/hour"
    assert len(prompt.json("overrides", "list", "gone", *where)["overrides"]) == 1
    assert prompt.json("overrides", "unset", "gone", "user=ann", *where)["unset"]
    assert 'There is no rule "gone"' in prompt.failure("overrides", "get", "gone", "user=ann", *where)


def test_a_rulebook_that_cannot_be_read_changes_nothing(
    prompt: Prompt, server: RedisServer, where: tuple[str, ...]
) -> None:
    assert prompt("overrides", "set", "login", "user=ann", "50/hour", *where) == 0
    for words in (["get", "login", "user=ann"], ["unset", "login", "user=ann"], ["list", "login"]):
        error = prompt.failure("overrides", *words, "--engine", server.url, "--rules", "nope.yaml")
        assert error.startswith("nope.yaml: The rulebook cannot be read")
    assert prompt.json("overrides", "get", "login", "user=ann", *where)["limit"] == "50/hour"
